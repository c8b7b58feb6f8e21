// Attention's backward pass against fp64: with p the probabilities and D = dO . O,
//   dV = p^T dO,   dS = p (dO V^T - D),   dK = dS^T Q / sqrt(head size),   dQ = dS K / sqrt(...).
#include <catch2/catch.hpp>

#include "tests/cuda/attention/attention_run.hpp"

namespace spillway::cuda {
namespace {

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  const std::int64_t tokens[] = {1, 7, 64, 65, 130, 200}, head_sizes[] = {8, 16, 40, 64, 80, 128};
  for (std::int64_t t = 0; t < 6; ++t)
    for (std::int64_t h = 0; h < 6; ++h)
      all.push_back(attention_case(1 + (t + h + 1) % 2, tokens[t], 1 + (t + 2 * h + 1) % 3,
                                   head_sizes[h], (t + h) % 3 * 5));
  all.push_back(attention_case(1, 257, 1, 64));
  all.push_back(attention_case(1, 257, 1, 128));
  return all;
}

TEST_CASE("Attention's gradients of bf16 on tensor cores are those of fp64 within roundings",
          "[attention]") {
  for (const AttentionCase& c : cases()) check_backward<bf16>(c, Way::fast);
}

TEST_CASE("Plain attention's gradients are those of fp64 within roundings, for fp32 and bf16",
          "[attention]") {
  for (const AttentionCase& c : cases()) {
    check_backward<float>(c, Way::fast);  // which is the plain way
    if (c.sizes.tokens < 100) check_backward<bf16>(c, Way::plain);
  }
}

// Every kernel of the backward pass in several tiles: small enough for a sanitizer.
TEST_CASE("Attention's gradients of a small text, with every kernel there is",
          "[attention][sanitizer][few]") {
  for (const std::int64_t head_size : {16, 32, 64, 96, 128})
    check_backward<bf16>(attention_case(1, 130, 1, head_size, 3), Way::fast);
  check_backward<bf16>(attention_case(2, 70, 2, 40), Way::plain);
  check_backward<float>(attention_case(2, 70, 2, 40), Way::plain);
}

TEST_CASE("Attention's gradients take large and small scores", "[attention]") {
  for (const double magnitude : {0.03, 8.0, 24.0}) {
    for (const std::int64_t head_size : {16, 64, 128}) {
      const AttentionCase c = attention_case(1, 130, 2, head_size, 3, magnitude);
      check_backward<bf16>(c, Way::fast);
      check_backward<float>(c, Way::fast);
    }
  }
}

TEST_CASE("Attention's gradients have the same bytes in any order of threads", "[attention]") {
  for (const std::int64_t head_size : {24, 64, 128}) {
    const AttentionCase c = attention_case(1, 200, 2, head_size);
    INFO(c.name());
    const auto check_orders = [&](auto element) {
      using Element = decltype(element);
      const AttentionInputs<Element> inputs(c);
      const ForwardResult<Element> saved = saved_forward(c, inputs.qkv);
      const auto first = run_backward(c, inputs, saved.output, saved.log_sum_exp, Way::fast);
      for (unsigned seed = 1; seed <= 3; ++seed) {
        change_order(seed);
        CHECK(
            same_bits(run_backward(c, inputs, saved.output, saved.log_sum_exp, Way::fast), first));
      }
    };
    check_orders(bf16{});
    check_orders(float{});
  }
}

}  // namespace
}  // namespace spillway::cuda
