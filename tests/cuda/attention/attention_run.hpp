// Runs attention on the device for tests: random inputs in, results and the errors against what was
// expected out.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "exec/cuda/attention/attention_plain.hpp"
#include "tests/cuda/attention/attention_reference.hpp"
#include "tests/cuda/device_memory.hpp"
#ifdef SPILLWAY_EMULATED_GPU
#include "tests/emulator/emulator.hpp"
#endif

namespace spillway::cuda {

// Everything one way of computing attention is given.
template <class Element>
struct AttentionInputs {
  static std::size_t elements(std::int64_t n) { return static_cast<std::size_t>(n); }
  static float magnitude(const AttentionCase& c) { return static_cast<float>(c.magnitude); }
  std::vector<Element> qkv, output_gradient;
  explicit AttentionInputs(const AttentionCase& c)
      : qkv(random_normal<Element>(elements(c.rows() * c.sizes.columns()), magnitude(c), c.seed)),
        output_gradient(random_normal<Element>(elements(c.rows() * c.sizes.channels()),
                                               magnitude(c), c.seed + 1)) {}
};

// The borders of a case on the device.
struct DeviceBorders {
  DeviceArray<std::int32_t> starts, ends;
  explicit DeviceBorders(const AttentionCase& c) : starts(c.starts), ends(c.ends) {}
  AttentionSizes sizes(const AttentionCase& c) const {
    AttentionSizes with = c.sizes;
    if (!c.starts.empty()) with.borders = {starts.data(), ends.data()};
    return with;
  }
};

enum class Way { fast, plain };  // attention_forward() or attention_forward_plain()

template <class Element>
struct ForwardResult {
  std::vector<Element> output;
  std::vector<float> log_sum_exp;
};

// What is not wanted is passed as null, and comes back as it was: NaN.
template <class Element>
ForwardResult<Element> run_forward(const AttentionCase& c, const std::vector<Element>& qkv, Way way,
                                   bool wants_output = true, bool wants_log_sum_exp = true) {
  const TestStream stream;
  const DeviceArray<Element> input(qkv);
  const DeviceArray<Element> output(static_cast<std::size_t>(c.rows() * c.sizes.channels()));
  const DeviceArray<float> log_sum_exp(static_cast<std::size_t>(c.statistics()));
  const DeviceBorders borders(c);
  (way == Way::fast
       ? attention_forward<Element>
       : attention_forward_plain<Element>)(borders.sizes(c),
                                           side_by_side<Element>(c.sizes, input.data()),
                                           wants_output ? output.data() : nullptr,
                                           wants_log_sum_exp ? log_sum_exp.data() : nullptr,
                                           stream);
  return {output.download(), log_sum_exp.download()};
}

template <class Element>
std::vector<Element> run_backward(const AttentionCase& c, const AttentionInputs<Element>& inputs,
                                  const std::vector<Element>& output,
                                  const std::vector<float>& log_sum_exp, Way way) {
  const TestStream stream;
  const DeviceArray<Element> qkv(inputs.qkv), out(output), out_gradient(inputs.output_gradient);
  const DeviceArray<Element> qkv_gradient(inputs.qkv.size());
  const DeviceArray<float> saved(log_sum_exp);
  const DeviceArray<float> dots(
      static_cast<std::size_t>(c.sizes.sequences * c.sizes.heads * c.sizes.tokens));
  const DeviceBorders borders(c);
  (way == Way::fast ? attention_backward<Element>
                    : attention_backward_plain<Element>)(borders.sizes(c),
                                                         side_by_side<Element>(c.sizes, qkv.data()),
                                                         out.data(), saved.data(),
                                                         out_gradient.data(), qkv_gradient.data(),
                                                         dots.data(), stream);
  dots.download();  // checks that nothing was written around it
  return qkv_gradient.download();
}

// How far results are from what is expected: the largest error in units of its bound (at most 1 is
// right), and the root mean square of errors in units of their deviation (about 1 where roundings
// are independent). NaN counts as infinitely far. A bound below zero says that nothing is to be
// written there: the bytes must be those of the poison, NaN.
struct Distance {
  double most = 0, root_mean_square = 0;
  std::size_t where = 0;
};
inline Distance distance(const std::vector<double>& result, const Expected& expected) {
  Distance found;
  double squares = 0, count = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    double share = 0;
    if (expected.bound[i] < 0) {
      share = std::isnan(result[i]) ? 0 : std::numeric_limits<double>::infinity();
    } else {
      const double error = std::abs(result[i] - expected.value[i]);
      share = std::isfinite(error) ? error / expected.bound[i]
                                   : std::numeric_limits<double>::infinity();
      if (expected.deviation[i] > 0) squares += std::pow(error / expected.deviation[i], 2);
      count += 1;
    }
    if (share > found.most) found = {share, 0, i};
  }
  found.root_mean_square = std::sqrt(squares / std::max(count, 1.0));
  return found;
}

// Runs the forward pass of a case, and checks its distances from fp64.
template <class Element>
void check_forward(const AttentionCase& c, Way way) {
  INFO(c.name());
  const AttentionInputs<Element> inputs(c);
  const ForwardExpected expected =
      attention_forward_expected(c, doubles(inputs.qkv), rounding_of<Element>);
  const ForwardResult<Element> result = run_forward(c, inputs.qkv, way);
  const Distance output = distance(doubles(result.output), expected.output);
  INFO("output: furthest at element " << output.where);
  CHECK(output.most <= 1.0);
  CHECK(output.root_mean_square <= 1.5);
  const Distance statistics = distance(doubles(result.log_sum_exp), expected.log_sum_exp);
  INFO("log-sum-exp: furthest at element " << statistics.where);
  CHECK(statistics.most <= 1.0);
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

// The same of the backward pass, given what saved_forward() says.
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
  INFO("furthest: row " << far.where / static_cast<std::size_t>(c.sizes.columns()) << ", column "
                        << far.where % static_cast<std::size_t>(c.sizes.columns()));
  CHECK(far.most <= 1.0);
  CHECK(far.root_mean_square <= 1.5);
}

// Another order of the emulator's threads and blocks; a GPU has one of its own every time.
inline void change_order([[maybe_unused]] unsigned seed) {
#ifdef SPILLWAY_EMULATED_GPU
  emulator::seed(seed);
#endif
}

}  // namespace spillway::cuda
