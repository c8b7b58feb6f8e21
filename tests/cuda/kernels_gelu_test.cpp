// GELU against its formula in fp64.
#include <catch2/catch.hpp>
#include <cmath>

#include "exec/cuda/kernels.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

// y = x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), and its derivative.
struct Gelu {
  double y, slope;
};
Gelu gelu(double x) {
  const double root = std::sqrt(2 / std::acos(-1.0));
  const double t = std::tanh(root * (x + 0.044715 * x * x * x));
  return {0.5 * x * (1 + t),
          0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x)};
}

// From deep in the tails to the middle, where most are.
template <class T>
std::vector<T> inputs(std::size_t n, std::uint64_t seed) {
  std::vector<T> x = random_normal<T>(n, 2, seed);
  for (std::size_t i = 0; i < n; i += 7) x[i] = from_float<T>(to_float(x[i]) * 10);
  x[0] = from_float<T>(0.0f);
  return x;
}

// The arithmetic is off by no more than 2e-6 of max(1, |x|), then comes the format's rounding.
template <class T>
void check_forward(std::size_t n) {
  const auto x = inputs<T>(n, n);
  INFO("n " << n << ", seed " << n);
  DeviceArray<T> from(x), to(n);
  TestStream stream;
  gelu_forward(from.data(), to.data(), static_cast<std::int64_t>(n), stream);
  std::vector<double> expected;
  for (const double value : doubles(x)) expected.push_back(gelu(value).y);
  CHECK(worst_of_bound(to.download(), expected, [&](std::size_t i) {
          return 2e-6 * std::max(1.0, std::fabs(static_cast<double>(to_float(x[i]))));
        }) <= 1);
  CHECK(same_bits(from.download(), x));
}

// Off by 4e-6 |gradient| max(1, |x|) before it is rounded.
template <class T>
void check_backward(std::size_t n) {
  const auto x = inputs<T>(n, n), g = random_normal<T>(n, 0.1f, n + 1);
  INFO("n " << n << ", seed " << n);
  DeviceArray<T> at(x), gradient(g);
  TestStream stream;
  gelu_backward(at.data(), gradient.data(), static_cast<std::int64_t>(n), stream);
  const auto xs = doubles(x), gs = doubles(g);
  std::vector<double> expected;
  for (std::size_t i = 0; i < n; ++i) expected.push_back(gs[i] * gelu(xs[i]).slope);
  CHECK(worst_of_bound(gradient.download(), expected, [&](std::size_t i) {
          return 4e-6 * std::fabs(gs[i]) * std::max(1.0, std::fabs(xs[i]));
        }) <= 1);
}

}  // namespace

TEMPLATE_TEST_CASE("GELU on the GPU follows the tanh formula", "", float, bf16) {
  for (const std::size_t n : {8u, 16u, 2056u, 8192u, 8200u, 100'000u}) check_forward<TestType>(n);
}

TEMPLATE_TEST_CASE("GELU's gradient on the GPU is the formula's slope times the gradient", "",
                   float, bf16) {
  for (const std::size_t n : {8u, 24u, 4096u, 4104u, 50'000u}) check_backward<TestType>(n);
}

TEMPLATE_TEST_CASE("GELU on the GPU, forward and backward, of a block and a part of one",
                   "[sanitizer]", float, bf16) {
  using T = TestType;
  check_forward<T>(8200);
  check_backward<T>(4104);
}

TEMPLATE_TEST_CASE("GELU on the GPU keeps NaN, and is x or 0 far out", "", float, bf16) {
  using T = TestType;
  std::vector<T> x(8, from_float<T>(0.0f));
  x[1] = from_float<T>(std::nanf(""));
  x[2] = from_float<T>(1e30f);
  x[3] = from_float<T>(-100.0f);
  DeviceArray<T> from(x), to(8);
  TestStream stream;
  gelu_forward(from.data(), to.data(), 8, stream);
  const auto y = doubles(to.download());
  CHECK(y[0] == 0);
  CHECK(std::isnan(y[1]));
  CHECK(y[2] == static_cast<double>(to_float(x[2])));
  CHECK(std::fabs(y[3]) < 1e-30);
}
