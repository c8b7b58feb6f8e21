// Cross entropy and its gradient against fp64.
#include <catch2/catch.hpp>
#include <cmath>

#include "exec/cuda/kernels/kernels.hpp"
#include "exec/data/batches.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

struct Rows {
  std::int64_t rows, vocabulary, stride;
};

// A sum of up to 128 additions in a row per thread, exponentials off by 2^-20: 1e-5, relative.
constexpr double slack = 1e-5;

template <class T>
void check(const Rows& shape, float size, float scale) {
  const auto seed = static_cast<std::uint64_t>(shape.vocabulary);
  INFO("rows " << shape.rows << " vocabulary " << shape.vocabulary << " stride " << shape.stride
               << " format " << sizeof(T) << " seed " << seed);
  const auto rows = static_cast<std::size_t>(shape.rows);
  const auto vocabulary = static_cast<std::size_t>(shape.vocabulary),
             stride = static_cast<std::size_t>(shape.stride);
  std::vector<T> x = random_normal<T>(rows * stride, size, seed);
  auto targets = random_tokens(rows, static_cast<std::int32_t>(vocabulary), seed + 1);
  targets.back() = static_cast<std::int32_t>(vocabulary) - 1;
  if (rows > 2) targets[1] = no_target;
  for (std::size_t row = 0; row < rows; ++row)  // what lies beyond counts for nothing
    for (std::size_t i = vocabulary; i < stride; ++i) x[row * stride + i] = from_float<T>(1e30f);
  DeviceArray<T> logits(x.size());
  DeviceArray<std::int32_t> wanted(targets);
  DeviceArray<double> losses(rows);
  DeviceArray<float> device_scale(std::vector<float>{scale});
  TestStream stream;
  const auto run = [&] {
    logits.upload(x);
    cross_entropy(logits.data(), shape.stride, shape.vocabulary, wanted.data(), device_scale.data(),
                  losses.data(), shape.rows, stream);
    return bytes_of(logits.download(), losses.download());
  };
  run();
  const auto loss = losses.download();
  std::vector<double> expected, bound;
  double worst_loss = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto values =
        doubles(std::vector<T>(x.begin() + static_cast<std::ptrdiff_t>(row * stride),
                               x.begin() + static_cast<std::ptrdiff_t>(row * stride + vocabulary)));
    const double largest = *std::max_element(values.begin(), values.end());
    double sum = 0;
    for (const double value : values) sum += std::exp(value - largest);
    if (targets[row] == no_target) {
      CHECK(loss[row] == 0);
      expected.insert(expected.end(), stride, 0.0);
      bound.insert(bound.end(), stride, 0.0);
      continue;
    }
    const auto target = static_cast<std::size_t>(targets[row]);
    const double exact = std::log(sum) + largest - values[target];
    worst_loss = std::max(worst_loss, std::fabs(loss[row] - exact));
    for (std::size_t i = 0; i < stride; ++i) {
      const double p = i < vocabulary ? std::exp(values[i] - largest) / sum : 0;
      const double one = i == target ? 1 : 0, s = static_cast<double>(scale);
      expected.push_back(s * (p - one));
      // 1e-37: where an exponential is no normal number, it may become 0.
      bound.push_back(i < vocabulary ? s * (slack * p + fp32_rounding * one) + 1e-37 : 0);
    }
  }
  CHECK(worst_loss <= slack);
  CHECK(worst_of_bound(logits.download(), expected, [&](std::size_t i) { return bound[i]; }) <= 1);
  require_repeatable(run);
}

}  // namespace

TEMPLATE_TEST_CASE("Cross entropy on the GPU: losses and gradients", "[kernels]", float, bf16) {
  using T = TestType;
  check<T>({1, 1, 8}, 1, 1);
  check<T>({3, 5, 8}, 3, 0.125f);
  check<T>({2, 64, 64}, 3, 1e-4f);
  check<T>({5, 1003, 1008}, 20, 1e-3f);
  check<T>({2, 4103, 4224}, 2, 1.0f / 65'536);
  check<T>({2, 50'257, 50'304}, 2, 1.0f / 524'288);
  // Rows of 48 KB, which is all the shared memory that a kernel has without asking for more.
  const std::int64_t just = 48 * 1024 / static_cast<std::int64_t>(sizeof(T));
  check<T>({1, just, just}, 1, 1e-3f);
}

TEMPLATE_TEST_CASE("Cross entropy on the GPU of a row too large for shared memory", "[kernels]",
                   float, bf16) {
  check<TestType>({1, 128'250, 128'256}, 4, 1e-3f);
}

TEMPLATE_TEST_CASE("Cross entropy on the GPU of a few rows, in and beyond shared memory",
                   "[kernels][sanitizer]", float, bf16) {
  check<TestType>({3, 1003, 1008}, 3, 1e-3f);
  check<TestType>({1, 128'250, 128'256}, 4, 1e-3f);
}

TEST_CASE("Cross entropy on the GPU of one token, worked out by hand", "[kernels]") {
  // logits (0, ln 2, ln 5): probabilities 1/8, 2/8, 5/8; target 1: loss ln 4, gradient (1, -6,
  // 5)/8.
  std::vector<float> x = {0.0f, std::log(2.0f), std::log(5.0f), 9, 9, 9, 9, 9};
  DeviceArray<float> logits(x);
  DeviceArray<std::int32_t> target(std::vector<std::int32_t>{1});
  DeviceArray<double> loss(1);
  DeviceArray<float> scale(std::vector<float>{2.0f});
  TestStream stream;
  cross_entropy(logits.data(), 8, 3, target.data(), scale.data(), loss.data(), 1, stream);
  CHECK(loss.download()[0] == Approx(std::log(4.0)));
  const auto gradient = logits.download();
  CHECK(gradient[0] == Approx(2.0 / 8));
  CHECK(gradient[1] == Approx(-2.0 * 6 / 8));
  CHECK(gradient[2] == Approx(2.0 * 5 / 8));
  for (std::size_t i = 3; i < 8; ++i) CHECK(gradient[i] == 0);
}

TEMPLATE_TEST_CASE("Cross entropy on the GPU: -infinity is probability 0, NaN shows", "[kernels]",
                   float, bf16) {
  using T = TestType;
  const float infinity = std::numeric_limits<float>::infinity();
  const std::size_t n = 1600;
  std::vector<T> x(2 * n, from_float<T>(-infinity));
  x[700] = x[900] = from_float<T>(3.0f);
  x[n + 5] = from_float<T>(std::nanf(""));
  DeviceArray<T> logits(x);
  DeviceArray<std::int32_t> targets(std::vector<std::int32_t>{900, 5});
  DeviceArray<double> losses(2);
  DeviceArray<float> scale(std::vector<float>{1.0f});
  TestStream stream;
  cross_entropy(logits.data(), static_cast<std::int64_t>(n), static_cast<std::int64_t>(n),
                targets.data(), scale.data(), losses.data(), 2, stream);
  CHECK(losses.download()[0] == Approx(std::log(2.0)));
  CHECK(std::isnan(losses.download()[1]));
  const auto gradient = doubles(logits.download());
  CHECK(gradient[700] == 0.5);
  CHECK(gradient[900] == -0.5);
  CHECK(gradient[0] == 0);
  CHECK(std::isnan(gradient[n + 6]));
}
