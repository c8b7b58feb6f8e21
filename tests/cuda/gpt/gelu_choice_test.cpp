// The ways to compute GELU's backward, each whole: the gradient of fc, of its bias, and GELU's
// output where it is wanted.
#include "exec/cuda/gpt/gelu_choice.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "base/errors.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

constexpr std::int64_t rows = 33, c = 24, f = 40;
std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

template <class T, class Gradient>
struct Ways {
  TestStream stream;
  DeviceArray<std::byte> workspace{Matmul::workspace_bytes}, kernels{workspace_bytes(c, f, 0)};
  Matmul matmul{workspace.data()};
  std::vector<T> dy_values = random_normal<T>(size(rows * c), 0.1f, 1);
  std::vector<T> w_values = random_normal<T>(size(c * f), 0.3f, 2);
  std::vector<T> fc_values = random_normal<T>(size(rows * f), 2, 3);
  DeviceArray<T> dy{dy_values}, w{w_values}, fc{fc_values}, dfc{size(rows * f)},
      gelu{size(rows * f)}, sums{size(f)};
  DeviceArray<Gradient> bias{size(f)};

  void run(GeluBackward how, bool wants_gelu, bool overwrites) {
    gelu_backward_by<T, Gradient>(
        how, matmul,
        {dy.data(), w.data(), fc.data(), dfc.data(), wants_gelu ? gelu.data() : nullptr,
         bias.data(), overwrites, sums.data(), rows, c, f},
        Workspace{kernels.data(), kernels.size()}, stream);
    static_cast<void>(kernels.download());  // checks its guards
  }
};

// Gradients of a product of some twenty terms: three roundings to T at most on the way to dfc, and
// one more of each sum; what is summed has either sign, so its bound is of the sizes of its terms.
template <class T, class Gradient>
void check_way(GeluBackward how, bool overwrites) {
  INFO(name_of(how) << ", format " << sizeof(T) << ", of the bias " << sizeof(Gradient)
                    << (overwrites ? ", overwrites" : ", adds"));
  Ways<T, Gradient> ways;
  const auto old = random_normal<Gradient>(size(f), 1, 4);
  if (!overwrites) ways.bias.upload(old);
  ways.run(how, false, overwrites);
  const auto dys = doubles(ways.dy_values), ws = doubles(ways.w_values),
             fcs = doubles(ways.fc_values);
  std::vector<double> expected(size(rows * f)), terms(size(rows * f)), sum(size(f)), sizes(size(f));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < f; ++i) {
      const std::size_t at = size(row * f + i);
      double value = 0;
      for (std::int64_t o = 0; o < c; ++o) {
        const double term = dys[size(row * c + o)] * ws[size(o * f + i)];
        value += term;
        terms[at] += std::fabs(term);
      }
      const double x = fcs[at], root = std::sqrt(2 / std::acos(-1.0));
      const double t = std::tanh(root * (x + 0.044715 * x * x * x));
      expected[at] =
          value * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x));
      sum[size(i)] += expected[at];
      sizes[size(i)] += std::fabs(expected[at]) + 1e-5 * terms[at];
    }
  }
  CHECK(worst_of_bound(ways.dfc.download(), expected, [&](std::size_t at) {
          return 1.2 * rounding_of<T> * std::fabs(expected[at]) + 1e-5 * terms[at];
        }) <= 1);
  if (!overwrites)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(to_float(old[i]));
  CHECK(worst_of_bound(ways.bias.download(), sum, [&](std::size_t i) {
          return 2.5 * rounding_of<T> * sizes[i] + 1e-5 * sizes[i] +
                 (overwrites ? 0.0 : 1e-6 * std::fabs(sum[i]));
        }) <= 1);
}

constexpr GeluBackward all_ways[] = {GeluBackward::kernel, GeluBackward::dgelu,
                                     GeluBackward::dgelu_bgrad};

}  // namespace

TEST_CASE("Every way to compute GELU's backward gives its gradient and the bias's", "[matmul]") {
  for (const GeluBackward how : all_ways) {
    for (const bool overwrites : {true, false}) {
      check_way<float, float>(how, overwrites);
      check_way<bf16, float>(how, overwrites);
      check_way<bf16, bf16>(how, overwrites);
    }
  }
}

TEST_CASE("GELU's output, where it is wanted, has forward's bits and changes no others",
          "[matmul]") {
  for (const GeluBackward how : all_ways) {
    INFO(name_of(how));
    Ways<bf16, float> without, with;
    without.run(how, false, true);
    with.run(how, true, true);
    CHECK(same_bits(with.dfc.download(), without.dfc.download()));
    CHECK(same_bits(with.bias.download(), without.bias.download()));
    gelu_forward(without.fc.data(), without.gelu.data(), rows * f, without.stream);
    CHECK(same_bits(with.gelu.download(), without.gelu.download()));
  }
}

TEST_CASE("Epilogues do not round what GELU's slope is taken times, so they have other bits",
          "[matmul]") {
  Ways<bf16, float> kernel, fused;
  kernel.run(GeluBackward::kernel, false, true);
  fused.run(GeluBackward::dgelu, false, true);
  CHECK_FALSE(same_bits(kernel.dfc.download(), fused.dfc.download()));
}

TEST_CASE("GELU's backward is named as machine files name it", "[matmul]") {
  for (const GeluBackward how : all_ways) CHECK(gelu_backward_of(name_of(how)) == how);
  CHECK_THROWS_AS(gelu_backward_of("fused"), InputError);
}
