// RMSNorm, SwiGLU and the rotary embedding against their formulas in double, and their gradients
// against central differences of those formulas.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "exec/cpu/kernels_cpu.hpp"

using namespace spillway;

namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

Floats random_floats(std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats values(static_cast<std::size_t>(n));
  for (float& x : values) x = normal(random);
  return values;
}

Doubles wide(const Floats& values) { return {values.begin(), values.end()}; }

double worst(const Floats& ours, const Doubles& exact) {
  REQUIRE(ours.size() == exact.size());
  double error = 0;
  for (std::size_t i = 0; i < exact.size(); ++i)
    error = std::max(error, std::fabs(static_cast<double>(ours[i]) - exact[i]) /
                                std::max(1.0, std::fabs(exact[i])));
  return error;
}

// d(sum of y_gradient * f(x)) / dx by central differences in double, good to about 1e-9.
Doubles slopes(const Doubles& x, const Floats& y_gradient,
               const std::function<Doubles(const Doubles&)>& f) {
  constexpr double h = 1e-5;
  const auto loss = [&](const Doubles& at) {
    const Doubles y = f(at);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(y_gradient[i]);
    return sum;
  };
  Doubles result;
  for (std::size_t i = 0; i < x.size(); ++i) {
    Doubles up = x, down = x;
    up[i] += h;
    down[i] -= h;
    result.push_back((loss(up) - loss(down)) / (2 * h));
  }
  return result;
}

constexpr std::int64_t rows = 5;
const CpuKernels& kernels() { return cpu_kernels(best_cpu_variant()); }

// y = x w / sqrt(mean(x^2) + epsilon), row by row.
Doubles rms_norm(const Doubles& x, const Doubles& weight, double epsilon) {
  const std::size_t columns = weight.size();
  Doubles y;
  for (std::size_t row = 0; row < x.size() / columns; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < columns; ++i)
      squares += x[row * columns + i] * x[row * columns + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + epsilon);
    for (std::size_t i = 0; i < columns; ++i) y.push_back(x[row * columns + i] * rstd * weight[i]);
  }
  return y;
}

}  // namespace

TEST_CASE("RMSNorm and its gradients follow the formula") {
  for (const std::int64_t columns : {1, 16, 37}) {
    // An epsilon as large as the squares, so that it counts.
    for (const double epsilon : {1e-6, 0.5}) {
      INFO("columns " << columns << " epsilon " << epsilon);
      const Floats x = random_floats(rows * columns, 1), weight = random_floats(columns, 2),
                   dy = random_floats(rows * columns, 3);
      Floats rstd(rows), y(x.size()), dx(x.size(), 1.0f),
          dw(static_cast<std::size_t>(columns), 1.0f);
      kernels().rms_statistics(x.data(), rstd.data(), rows, columns, static_cast<float>(epsilon));
      kernels().rms_apply(x.data(), rstd.data(), weight.data(), y.data(), rows, columns);
      kernels().rms_backward(dy.data(), x.data(), rstd.data(), weight.data(), dx.data(), false,
                             dw.data(), rows, columns);
      CHECK(worst(y, rms_norm(wide(x), wide(weight), epsilon)) < 1e-6);
      Doubles expected_dx = slopes(
          wide(x), dy, [&](const Doubles& at) { return rms_norm(at, wide(weight), epsilon); });
      Doubles expected_dw = slopes(
          wide(weight), dy, [&](const Doubles& at) { return rms_norm(wide(x), at, epsilon); });
      for (double& value : expected_dx) value += 1;  // both are added to
      for (double& value : expected_dw) value += 1;
      CHECK(worst(dx, expected_dx) < 1e-5);
      CHECK(worst(dw, expected_dw) < 1e-5);

      // Overwriting, also in place of the gradient it starts from.
      Floats in_place = dy;
      kernels().rms_backward(in_place.data(), x.data(), rstd.data(), weight.data(), in_place.data(),
                             true, dw.data(), rows, columns);
      for (double& value : expected_dx) value -= 1;
      CHECK(worst(in_place, expected_dx) < 1e-5);
    }
  }
}

TEST_CASE("SwiGLU and its gradient follow the formula") {
  const auto swiglu = [](std::int64_t columns) {
    return [n = static_cast<std::size_t>(columns)](const Doubles& x) {
      Doubles y;
      for (std::size_t row = 0; row < x.size() / (2 * n); ++row) {
        for (std::size_t i = 0; i < n; ++i) {
          const double gate = x[row * 2 * n + i], up = x[row * 2 * n + n + i];
          y.push_back(gate / (1 + std::exp(-gate)) * up);
        }
      }
      return y;
    };
  };
  for (const std::int64_t columns : {1, 16, 37}) {
    INFO("columns " << columns);
    Floats x = random_floats(rows * 2 * columns, 4);
    for (float& value : x) value *= 4;
    const Floats dy = random_floats(rows * columns, 5);
    Floats y(dy.size()), gradient(x.size(), NAN);
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(dy.begin() + row * columns, columns, gradient.begin() + (2 * row + 1) * columns);
    kernels().swiglu_forward(x.data(), y.data(), rows, columns);
    kernels().swiglu_backward(x.data(), gradient.data(), rows, columns);
    CHECK(worst(y, swiglu(columns)(wide(x))) < 1e-6);
    CHECK(worst(gradient, slopes(wide(x), dy, swiglu(columns))) < 1e-5);
  }
  // At the ends of the range of exp the gate is 0 or 1, and nothing overflows.
  const Floats x = {-1e4f, -90.0f, 90.0f, 1e4f, 2.0f, 2.0f, 2.0f, 2.0f};
  Floats y(4), gradient = {0, 0, 0, 0, 1, 1, 1, 1};
  kernels().swiglu_forward(x.data(), y.data(), 1, 4);
  kernels().swiglu_backward(x.data(), gradient.data(), 1, 4);
  CHECK(worst(y, {0, 0, 180, 2e4}) < 1e-6);
  CHECK(worst(gradient, {0, 0, 2, 2, 0, 0, 90, 1e4}) < 1e-6);
}

TEST_CASE("The rotary embedding turns pairs of elements, and turns them back") {
  // Two heads of 37 pairs at the start of each row; the 3 elements after them are left alone.
  const std::int64_t heads = 2, pairs = 37, stride = heads * 2 * pairs + 3;
  const Floats angles = random_floats(rows * pairs, 6), x = random_floats(rows * stride, 7);
  Floats cosines, sines;
  for (const float angle : angles) {
    cosines.push_back(std::cos(angle));
    sines.push_back(std::sin(angle));
  }
  Doubles expected = wide(x);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t i = 0; i < pairs; ++i) {
        const auto first = static_cast<std::size_t>(row * stride + head * 2 * pairs + i);
        const std::size_t second = first + static_cast<std::size_t>(pairs);
        const double angle = static_cast<double>(angles[static_cast<std::size_t>(row * pairs + i)]);
        const double a = expected[first], b = expected[second];
        expected[first] = a * std::cos(angle) - b * std::sin(angle);
        expected[second] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
  Floats turned = x;
  kernels().rotate_heads(turned.data(), cosines.data(), sines.data(), rows, heads, 2 * pairs,
                         stride, 1);
  CHECK(worst(turned, expected) < 1e-6);
  kernels().rotate_heads(turned.data(), cosines.data(), sines.data(), rows, heads, 2 * pairs,
                         stride, -1);
  CHECK(worst(turned, wide(x)) < 1e-6);
}
