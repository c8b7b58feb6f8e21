// Attention of long sequences, for which fp64 on the host takes too long: tensor cores against the
// plain twin, which shorter tests hold against fp64. On a GPU at the lengths of training; in the
// emulator at one that has several tiles of each kind.
#include <catch2/catch.hpp>

#include "tests/cuda/attention/attention_run.hpp"

namespace spillway::cuda {
namespace {

std::vector<std::int64_t> long_sequences() {
#ifdef SPILLWAY_EMULATED_GPU
  return {333};
#else
  return {1024, 2048, 4133};
#endif
}

// |a - b| / |b| over all elements of one part (q, k or v; or all with 1 part) of rows of `parts`.
double relative_distance(const std::vector<bf16>& a, const std::vector<bf16>& b,
                         std::int64_t channels, std::int64_t parts, std::int64_t part) {
  double differences = 0, squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (static_cast<std::int64_t>(i) / channels % parts != part) continue;
    const auto x = static_cast<double>(to_float(a[i])), y = static_cast<double>(to_float(b[i]));
    differences += (x - y) * (x - y);
    squares += y * y;
  }
  return std::sqrt(differences / squares);
}

// Each way rounds its result, the tensor cores' also p and ds: three independent errors of at most
// 2^-8, and about 0.4 times that in the mean square. Together they are below 2^-8. A row has up to
// 4133 / 64 tiles: one left out, masked wrongly or taken twice would be several times more.
constexpr double limit = 0x1p-8;

TEST_CASE("Attention of long sequences on tensor cores is that of the plain twin", "[attention]") {
  for (const std::int64_t tokens : long_sequences()) {
    for (const std::int64_t head_size : {64, 80, 128}) {
      const AttentionCase c = attention_case(1, tokens, 3, head_size);
      INFO(c.name());
      const AttentionInputs<bf16> inputs(c);
      const auto fast = run_forward(c, inputs.qkv, Way::fast);
      const auto plain = run_forward(c, inputs.qkv, Way::plain);
      CHECK(relative_distance(fast.output, plain.output, c.sizes.channels(), 1, 0) <= limit);
      double furthest = 0;
      for (std::size_t i = 0; i < fast.log_sum_exp.size(); ++i)
        furthest = std::max(furthest, std::abs(static_cast<double>(fast.log_sum_exp[i]) -
                                               static_cast<double>(plain.log_sum_exp[i])));
      CHECK(furthest <= 1e-4);

      const auto gradients = [&](Way way) {
        return run_backward(c, inputs, plain.output, plain.log_sum_exp, way);
      };
      const std::vector<bf16> fast_gradient = gradients(Way::fast);
      const std::vector<bf16> plain_gradient = gradients(Way::plain);
      for (const std::int64_t part : {0, 1, 2}) {
        INFO("gradient of "
             << "qkv"[part]);
        CHECK(relative_distance(fast_gradient, plain_gradient, c.sizes.channels(), 3, part) <=
              limit);
      }
      CHECK(same_bits(run_forward(c, inputs.qkv, Way::fast).output, fast.output));
      CHECK(same_bits(gradients(Way::fast), fast_gradient));
    }
  }
}

}  // namespace
}  // namespace spillway::cuda
