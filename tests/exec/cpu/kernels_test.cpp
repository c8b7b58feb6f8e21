// The kernels: all variants give the same bits, and exp, GELU and cross entropy are accurate.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/errors.hpp"
#include "exec/cpu/kernels_cpu.hpp"

using namespace spillway;

namespace {

std::vector<const CpuKernels*> wide_variants() {
  std::vector<const CpuKernels*> variants;
  for (const CpuVariant variant : {CpuVariant::avx2, CpuVariant::avx512})
    if (cpu_variant_available(variant)) variants.push_back(&cpu_kernels(variant));
  return variants;
}

std::vector<float> random_floats(std::size_t n, float size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Everything a variant computes from the same (rows, columns) input, laid end to end.
std::vector<float> everything(const CpuKernels& k, std::int64_t rows, std::int64_t columns) {
  const auto n = static_cast<std::size_t>(rows * columns);
  const auto row_count = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(columns);
  const auto x = random_floats(n, 3, 1), dy = random_floats(n, 1, 2),
             w = random_floats(width, 1, 3);
  std::vector<float> all;
  const auto keep = [&](const std::vector<float>& values) {
    all.insert(all.end(), values.begin(), values.end());
  };
  std::vector<float> y(n), mean(row_count), rstd(row_count), dw(width), db(width), dx = x;
  k.norm_statistics(x.data(), mean.data(), rstd.data(), rows, columns, 1e-5f);
  k.norm_apply(x.data(), mean.data(), rstd.data(), w.data(), w.data(), y.data(), rows, columns);
  k.norm_backward(dy.data(), x.data(), mean.data(), rstd.data(), w.data(), dx.data(), false,
                  dw.data(), db.data(), rows, columns);
  for (const auto* values : {&mean, &rstd, &y, &dx, &dw, &db}) keep(*values);
  k.norm_backward(dy.data(), x.data(), mean.data(), rstd.data(), w.data(), dx.data(), true,
                  dw.data(), db.data(), rows, columns);
  k.add_column_sums(x.data(), db.data(), rows, columns);
  for (const auto* values : {&dx, &dw, &db}) keep(*values);
  k.gelu_forward(x.data(), y.data(), rows * columns);
  keep(y);
  y = dy;
  k.gelu_backward(x.data(), y.data(), rows * columns);
  keep(y);
  k.fill_rows(w.data(), y.data(), rows, columns);
  k.add_to_rows(x.data(), w.data(), y.data(), rows, columns);
  keep(y);
  k.rms_statistics(x.data(), rstd.data(), rows, columns, 1e-6f);
  k.rms_apply(x.data(), rstd.data(), w.data(), y.data(), rows, columns);
  for (const auto* values : {&rstd, &y}) keep(*values);
  for (const bool overwrite : {false, true}) {
    k.rms_backward(dy.data(), x.data(), rstd.data(), w.data(), dx.data(), overwrite, dw.data(),
                   rows, columns);
    for (const auto* values : {&dx, &dw}) keep(*values);
  }
  std::vector<float> gate_up = random_floats(2 * n, 3, 4), wide = random_floats(2 * n, 1, 5);
  k.swiglu_forward(gate_up.data(), y.data(), rows, columns);
  k.swiglu_backward(gate_up.data(), wide.data(), rows, columns);
  k.rotate_heads(gate_up.data(), x.data(), dy.data(), rows, 1, 2 * columns, 2 * columns, 1);
  for (const auto* values : {&y, &wide, &gate_up}) keep(*values);
  if (columns >= rows) {
    std::vector<float> sums(row_count), lse(row_count), p = x;
    const std::int64_t first = columns - rows;
    k.attention_softmax({p.data(), rows, columns, first}, sums.data(), lse.data());
    for (const auto* values : {&p, &sums, &lse}) keep(*values);
    k.divide_rows(p.data(), sums.data(), rows, columns, columns);
    keep(p);
    p = x;
    k.attention_probabilities({p.data(), rows, columns, first}, lse.data());
    y = dy;
    k.row_dots(x.data(), dy.data(), sums.data(), rows, columns, columns);
    k.attention_score_gradient({p.data(), rows, columns, first}, y.data(), sums.data(), 0.25f);
    for (const auto* values : {&p, &y, &sums}) keep(*values);
    p = x;
    const AttentionRows windowed{p.data(), rows, columns, first, 1 + columns / 3};
    k.attention_softmax(windowed, sums.data(), lse.data());
    keep(p);
    p = x;
    k.attention_probabilities(windowed, lse.data());
    k.attention_score_gradient(windowed, y.data(), sums.data(), 0.25f);
    for (const auto* values : {&p, &y, &lse}) keep(*values);
  }
  y = x;
  all.push_back(static_cast<float>(k.cross_entropy(y.data(), 0, rows * columns, 0.125f)));
  keep(y);
  return all;
}

}  // namespace

TEST_CASE("All kernel variants give the same bits, for every row length modulo 16") {
  for (const CpuKernels* variant : wide_variants()) {
    for (std::int64_t columns = 1; columns <= 50; ++columns) {
      INFO(variant->name << " columns " << columns);
      CHECK(same(everything(*variant, 5, columns),
                 everything(cpu_kernels(CpuVariant::plain), 5, columns)));
    }
  }
}

TEST_CASE("exp is within 2 units in the last place, and handles the ends of its range") {
  std::vector<float> x;
  for (float value = -87.3f; value < 88.3f; value += 0.0037f) x.push_back(value);
  std::vector<float> y(x.size());
  const CpuKernels& kernels = cpu_kernels(CpuVariant::plain);
  kernels.exponential(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const float rounded = static_cast<float>(exact);
    const double unit =
        static_cast<double>(std::nextafter(rounded, INFINITY)) - static_cast<double>(rounded);
    worst = std::max(worst, std::fabs(static_cast<double>(y[i]) - exact) / unit);
  }
  CHECK(worst < 2.0);

  const float infinity = std::numeric_limits<float>::infinity();
  for (const CpuVariant variant : {CpuVariant::plain, CpuVariant::avx2, CpuVariant::avx512}) {
    if (!cpu_variant_available(variant)) continue;
    const std::vector<float> ends = {0.0f, -0.0f, -88.0f, -1e30f, -infinity, std::nanf(""), 1e30f};
    std::vector<float> result(ends.size());
    cpu_kernels(variant).exponential(ends.data(), result.data(), 7);
    CHECK(result[0] == 1.0f);
    CHECK(result[1] == 1.0f);
    CHECK(result[2] == 0.0f);
    CHECK(result[3] == 0.0f);
    CHECK(result[4] == 0.0f);
    CHECK(std::isnan(result[5]));
    CHECK(result[6] > 1e38f);
  }
}

TEST_CASE("GELU and its slope follow the tanh formula") {
  // y = x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), in double; error 1e-6 of max(1, |x|).
  std::vector<float> x;
  for (float value = -30.0f; value < 30.0f; value += 0.0113f) x.push_back(value);
  std::vector<float> y(x.size()), slope(x.size(), 1.0f);
  const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
  kernels.gelu_forward(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  kernels.gelu_backward(x.data(), slope.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0, worst_slope = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = static_cast<double>(x[i]), root = std::sqrt(2 / std::acos(-1.0));
    const double t = std::tanh(root * (v + 0.044715 * v * v * v));
    const double exact = 0.5 * v * (1 + t);
    const double exact_slope =
        0.5 * (1 + t) + 0.5 * v * (1 - t * t) * root * (1 + 3 * 0.044715 * v * v);
    const double size = std::max(1.0, std::fabs(v));
    worst = std::max(worst, std::fabs(static_cast<double>(y[i]) - exact) / size);
    worst_slope = std::max(worst_slope, std::fabs(static_cast<double>(slope[i]) - exact_slope));
  }
  CHECK(worst < 1e-6);
  CHECK(worst_slope < 2e-6);
}

TEST_CASE("Cross entropy of one token: loss and gradient") {
  // logits (0, ln 2, ln 5): probabilities 1/8, 2/8, 5/8; target 1: loss ln 4, gradient (1, -6, 5)
  // / 8.
  std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  const double loss = cpu_kernels(CpuVariant::plain).cross_entropy(logits.data(), 1, 3, 2.0f);
  CHECK(loss == Approx(std::log(4.0)));
  CHECK(logits[0] == Approx(2.0 / 8));
  CHECK(logits[1] == Approx(-2.0 * 6 / 8));
  CHECK(logits[2] == Approx(2.0 * 5 / 8));
}

TEST_CASE("The chosen variant is available, and an unavailable one is refused") {
  CHECK(cpu_variant_available(CpuVariant::plain));
  CHECK(cpu_variant_available(best_cpu_variant()));
  for (const CpuVariant variant : {CpuVariant::avx2, CpuVariant::avx512}) {
    if (cpu_variant_available(variant))
      CHECK(std::string(cpu_kernels(variant).name) != cpu_kernels(CpuVariant::plain).name);
    else
      CHECK_THROWS_AS(cpu_kernels(variant), MachineError);
  }
}
