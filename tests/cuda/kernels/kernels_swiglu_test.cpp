// SwiGLU against its formula in fp64.
#include <catch2/catch.hpp>
#include <cmath>

#include "exec/cuda/kernels/kernels.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

// silu(x) = x s, s = 1 / (1 + exp(-x)), and its derivative.
struct Silu {
  double y, slope;
};
Silu silu(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return {x * s, s * (1 + x * (1 - s))};
}

// From deep in the tails to the middle, where most are.
template <class T>
std::vector<T> inputs(std::size_t n, std::uint64_t seed) {
  std::vector<T> x = random_normal<T>(n, 2, seed);
  for (std::size_t i = 0; i < n; i += 7) x[i] = from_float<T>(to_float(x[i]) * 10);
  return x;
}

// The arithmetic is off by no more than 4e-6 of the magnitude of what is multiplied; then comes the
// format's rounding. The product made by backward has forward's bits.
template <class T>
void check(std::int64_t rows, std::int64_t columns) {
  constexpr double off = 4e-6;
  const auto f = static_cast<std::size_t>(columns), n = static_cast<std::size_t>(rows) * f;
  INFO("rows " << rows << " columns " << columns << ", " << sizeof(T) << " bytes");
  const auto gate_up = inputs<T>(2 * n, n), d = random_normal<T>(2 * n, 0.1f, n + 1);
  const DeviceArray<T> from(gate_up), product(n), again(n), untouched(n);
  DeviceArray<T> gradient(d);
  const TestStream stream;
  swiglu_forward<T>(from.data(), product.data(), rows, columns, stream);
  swiglu_backward<T>(from.data(), gradient.data(), again.data(), rows, columns, stream);
  const auto alone = gradient.download();
  gradient.upload(d);
  swiglu_backward<T>(from.data(), gradient.data(), nullptr, rows, columns, stream);
  CHECK(same_bits(gradient.download(), alone));
  CHECK(same_bits(again.download(), product.download()));

  std::vector<double> expected(n), slack(n), expected_gradient(2 * n), gradient_slack(2 * n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = i / f * 2 * f + i % f;
    const auto gate = static_cast<double>(to_float(gate_up[at]));
    const auto up = static_cast<double>(to_float(gate_up[at + f]));
    const auto dy = static_cast<double>(to_float(d[at + f]));
    const Silu s = silu(gate);
    const double large = std::max(1.0, std::fabs(gate));
    expected[i] = s.y * up;
    slack[i] = off * large * std::fabs(up);
    expected_gradient[at] = dy * up * s.slope;
    gradient_slack[at] = off * large * std::fabs(dy * up);
    expected_gradient[at + f] = dy * s.y;
    gradient_slack[at + f] = off * large * std::fabs(dy);
  }
  CHECK(worst_of_bound(product.download(), expected, [&](std::size_t i) { return slack[i]; }) <= 1);
  CHECK(worst_of_bound(alone, expected_gradient,
                       [&](std::size_t i) { return gradient_slack[i]; }) <= 1);
  CHECK(same_bits(from.download(), gate_up));
}

}  // namespace

TEMPLATE_TEST_CASE("SwiGLU on the GPU, forward and backward, follows its formula", "[kernels]",
                   float, bf16) {
  check<TestType>(1, 8);
  check<TestType>(3, 24);
  check<TestType>(5, 264);
  check<TestType>(33, 512);
  check<TestType>(7, 1376);
}

TEMPLATE_TEST_CASE("SwiGLU on the GPU of a block and a part of one", "[kernels][sanitizer]", float,
                   bf16) {
  check<TestType>(9, 136);
}

TEMPLATE_TEST_CASE("SwiGLU on the GPU keeps NaN, and is up gate or 0 far out", "[kernels]", float,
                   bf16) {
  using T = TestType;
  std::vector<T> x(16, from_float<T>(1.0f));
  x[1] = from_float<T>(std::nanf(""));
  x[2] = from_float<T>(1e30f);
  x[3] = from_float<T>(-1000.0f);
  const DeviceArray<T> from(x), to(8);
  const TestStream stream;
  swiglu_forward<T>(from.data(), to.data(), 1, 8, stream);
  const auto y = doubles(to.download());
  CHECK(std::isnan(y[1]));
  CHECK(y[2] == static_cast<double>(to_float(x[2])));
  CHECK(std::fabs(y[3]) < 1e-30);
}
