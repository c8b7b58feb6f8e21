// Attention's backward pass against fp64: with p the probabilities and D = dO . O,
//   dV = p^T dO,   dS = p (dO V^T - D),   dK = dS^T Q / sqrt(head size),   dQ = dS K / sqrt(...).
#include <catch2/catch.hpp>

#include "tests/cuda/attention_run.hpp"

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

// What the forward pass saved, from fp64: rounded to the element type and to fp32.
template <class Element>
ForwardResult<Element> saved_forward(const AttentionCase& c, const std::vector<Element>& qkv) {
  const ForwardExpected exact = attention_forward_expected(c, doubles(qkv), rounding_of<Element>);
  ForwardResult<Element> saved;
  for (const double value : exact.output.value)
    saved.output.push_back(from_float<Element>(static_cast<float>(value)));
  for (const double value : exact.log_sum_exp.value)
    saved.log_sum_exp.push_back(static_cast<float>(value));
  return saved;
}

template <class Element>
void check_backward(const AttentionCase& c, Way way) {
  INFO(c.name());
  const AttentionInputs<Element> inputs(c);
  const ForwardResult<Element> saved = saved_forward(c, inputs.qkv);
  const Expected expected =
      attention_backward_expected(c, doubles(inputs.qkv), doubles(saved.output), saved.log_sum_exp,
                                  doubles(inputs.output_gradient), rounding_of<Element>);
  const std::vector<Element> gradient =
      run_backward(c, inputs, saved.output, saved.log_sum_exp, way);
  const Distance far = distance(doubles(gradient), expected);
  INFO("furthest: row " << far.where / static_cast<std::size_t>(3 * c.sizes.channels) << ", column "
                        << far.where % static_cast<std::size_t>(3 * c.sizes.channels));
  CHECK(far.most <= 1.0);
  CHECK(far.root_mean_square <= 1.5);
}

TEST_CASE("Attention's gradients of bf16 on tensor cores are those of fp64 within roundings") {
  for (const AttentionCase& c : cases()) check_backward<bf16>(c, Way::fast);
}

TEST_CASE("Plain attention's gradients are those of fp64 within roundings, for fp32 and bf16") {
  for (const AttentionCase& c : cases()) {
    check_backward<float>(c, Way::fast);  // which is the plain way
    if (c.sizes.tokens < 100) check_backward<bf16>(c, Way::plain);
  }
}

TEST_CASE("Attention's gradients take large and small scores") {
  for (const double magnitude : {0.03, 8.0, 24.0}) {
    for (const std::int64_t head_size : {16, 64, 128}) {
      const AttentionCase c = attention_case(1, 130, 2, head_size, 3, magnitude);
      check_backward<bf16>(c, Way::fast);
      check_backward<float>(c, Way::fast);
    }
  }
}

TEST_CASE("Attention's gradients have the same bytes in any order of threads") {
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
