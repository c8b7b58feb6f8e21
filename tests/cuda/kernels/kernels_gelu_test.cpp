// GELU against its formula in fp64.
#include <catch2/catch.hpp>
#include <cmath>

#include "exec/cuda/kernels/kernels.hpp"
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

// The gradient is off by 4e-6 |gradient| max(1, |x|) before it is rounded; sums over rows are those
// of what is stored, off by 64 fp32 roundings of the sum of magnitudes; y has forward's bits.
template <class T, class Gradient>
void check_backward(std::int64_t rows, std::int64_t columns, bool makes_y, bool overwrites) {
  const auto width = static_cast<std::size_t>(columns);
  const std::size_t n = static_cast<std::size_t>(rows) * width;
  const auto x = inputs<T>(n, n), g = random_normal<T>(n, 0.1f, n + 1);
  const auto old = random_normal<Gradient>(width, 1, n + 2);
  INFO("rows " << rows << " columns " << columns << " makes y " << makes_y << " overwrites "
               << overwrites << " format " << sizeof(T) << ", of the sums " << sizeof(Gradient)
               << ", seed " << n);
  const DeviceArray<T> at(x);
  DeviceArray<T> gradient(n), y(n), expected_y(n);
  DeviceArray<Gradient> sums(width);
  const DeviceArray<std::byte> memory(workspace_bytes(8, columns, 0));
  TestStream stream;
  const auto run = [&] {
    gradient.upload(g);
    if (!overwrites) sums.upload(old);
    gelu_backward(at.data(), gradient.data(), makes_y ? y.data() : nullptr, sums.data(), overwrites,
                  rows, columns, Workspace{memory.data(), memory.size()}, stream);
    static_cast<void>(memory.download());  // checks its guards
    return bytes_of(gradient.download(), y.download(), sums.download());
  };
  run();
  const auto xs = doubles(x), gs = doubles(g);
  std::vector<double> expected;
  for (std::size_t i = 0; i < n; ++i) expected.push_back(gs[i] * gelu(xs[i]).slope);
  const auto stored = gradient.download();
  CHECK(worst_of_bound(stored, expected, [&](std::size_t i) {
          return 4e-6 * std::fabs(gs[i]) * std::max(1.0, std::fabs(xs[i]));
        }) <= 1);
  std::vector<double> total(width), magnitude(width);
  for (std::size_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(to_float(stored[i]));
    total[i % width] += value;
    magnitude[i % width] += std::fabs(value);
  }
  if (!overwrites)
    for (std::size_t c = 0; c < width; ++c) total[c] += static_cast<double>(to_float(old[c]));
  CHECK(worst_of_bound(sums.download(), total,
                       [&](std::size_t c) { return 64 * fp32_rounding * magnitude[c]; }) <= 1);
  if (makes_y && n > 0) {
    gelu_forward(at.data(), expected_y.data(), static_cast<std::int64_t>(n), stream);
    CHECK(same_bits(y.download(), expected_y.download()));
  } else {
    CHECK(same_bits(y.download(), expected_y.download()));  // untouched
  }
  CHECK(same_bits(at.download(), x));
  require_repeatable(run);
}

}  // namespace

TEMPLATE_TEST_CASE("GELU on the GPU follows the tanh formula", "[kernels]", float, bf16) {
  for (const std::size_t n : {8u, 16u, 2056u, 8192u, 8200u, 100'000u}) check_forward<TestType>(n);
}

TEMPLATE_TEST_CASE("GELU's gradient on the GPU is the formula's slope times the gradient",
                   "[kernels]", float, bf16) {
  // Parts of tiles, of 128 or 256 columns, and of chunks, of a multiple of 32 rows.
  using T = TestType;
  check_backward<T, float>(1, 8, false, true);
  check_backward<T, float>(3, 24, true, false);
  check_backward<T, bf16>(33, 264, true, true);
  check_backward<T, float>(97, 512, false, false);
  check_backward<T, bf16>(7, 3080, false, false);
  check_backward<T, float>(301, 136, true, true);
}

TEST_CASE("GELU's gradient on the GPU with more rows than chunks of the least size", "[kernels]") {
  // 2112 blocks of 1 tile: the chunks grow from 32 rows to 64.
  check_backward<bf16, float>(2113 * 32 + 5, 8, true, true);
}

TEST_CASE("GELU's gradient on the GPU of no rows leaves the sums, or makes them zero",
          "[kernels]") {
  const DeviceArray<float> sums(random_normal<float>(16, 1, 1)), x(8);
  const auto before = sums.download();
  const DeviceArray<std::byte> memory(workspace_bytes(8, 16, 0));
  TestStream stream;
  const auto run = [&](bool overwrites) {
    gelu_backward<float, float>(x.data(), x.data(), nullptr, sums.data(), overwrites, 0, 16,
                                Workspace{memory.data(), memory.size()}, stream);
  };
  run(false);
  CHECK(same_bits(sums.download(), before));
  run(true);
  CHECK(sums.download() == std::vector<float>(16, 0.0f));
}

TEMPLATE_TEST_CASE("GELU on the GPU, forward and backward, of a block and a part of one",
                   "[kernels][sanitizer]", float, bf16) {
  using T = TestType;
  check_forward<T>(8200);
  check_backward<T, float>(35, 264, true, false);
  check_backward<T, bf16>(9, 136, false, true);
}

TEMPLATE_TEST_CASE("GELU on the GPU keeps NaN, and is x or 0 far out", "[kernels]", float, bf16) {
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
