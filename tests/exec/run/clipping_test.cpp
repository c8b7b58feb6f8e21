// The norm of a gradient, the factor of clipping, and AdamW with it.
#include "exec/run/clipping.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "exec/cpu/adam.hpp"
#include "exec/cpu/kernels_cpu.hpp"

using namespace spillway;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_values(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-60, 20);
  std::vector<float> values(n);
  for (float& value : values) value = std::ldexp(normal(random), exponent(random));
  return values;
}

double sum_of_squares(CpuVariant variant, const std::vector<float>& x,
                      const std::vector<float>& second) {
  return cpu_kernels(variant).sum_of_squares(x.data(), second.empty() ? nullptr : second.data(),
                                             static_cast<std::int64_t>(x.size()));
}

Workload workload(GradientClip clip, OnNonFinite action = OnNonFinite::stop) {
  Workload w;
  w.clip = clip;
  w.on_nonfinite = action;
  return w;
}

}  // namespace

TEST_CASE("The sum of squares is that of long double, and all variants agree to the bit") {
  // Each of n additions in fp64 rounds by 2^-53 of a growing sum of terms that are not negative:
  // the relative error is below n 2^-53, and 2^-24 for the fp32 sum of two gradients is not in it,
  // for the reference rounds there, too.
  for (const std::size_t n : {1u, 15u, 16u, 17u, 2047u, 2048u, 2049u, 5000u, 300'007u}) {
    const std::uint64_t seed = 40 + n;
    INFO("n " << n << ", seed " << seed);
    const std::vector<float> x = random_values(n, seed);
    for (const std::vector<float>& second : {std::vector<float>{}, random_values(n, seed + 1)}) {
      long double exact = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const float g = second.empty() ? x[i] : x[i] + second[i];
        exact += static_cast<long double>(g) * static_cast<long double>(g);
      }
      const double plain = sum_of_squares(CpuVariant::plain, x, second);
      CHECK(std::abs(static_cast<long double>(plain) / exact - 1) <=
            static_cast<long double>(n) * 0x1p-53L);
      for (const CpuVariant variant : {CpuVariant::avx2, CpuVariant::avx512}) {
        if (cpu_variant_available(variant)) CHECK(sum_of_squares(variant, x, second) == plain);
      }
    }
  }
}

TEST_CASE("The sum of squares is finite just where every element is") {
  std::vector<float> x(5000, std::numeric_limits<float>::max());
  CHECK(std::isfinite(sum_of_squares(best_cpu_variant(), x, {})));
  for (const float bad : {inf, -inf, not_a_number}) {
    for (const std::size_t at : {0u, 2047u, 4999u}) {
      std::vector<float> poisoned = x;
      poisoned[at] = bad;
      CHECK_FALSE(std::isfinite(sum_of_squares(best_cpu_variant(), poisoned, {})));
    }
  }
}

TEST_CASE("The factor of clipping is that of torch.nn.utils.clip_grad_norm_") {
  // limit / (norm + 1e-6), at most 1.
  CHECK(clip_factor(5, 1) == static_cast<float>(1 / (5 + 1e-6)));
  CHECK(clip_factor(2, 0.5) == static_cast<float>(0.5 / (2 + 1e-6)));
  CHECK(clip_factor(1, 1) == static_cast<float>(1 / (1 + 1e-6)));  // at the limit: just below 1
  CHECK(clip_factor(0.999, 1) == 1.0f);
  CHECK(clip_factor(0, 1) == 1.0f);
  CHECK(clip_factor(0, 1e-7) == static_cast<float>(1e-7 / 1e-6));
}

TEST_CASE("An update takes the norm of all units, of its own, or of none") {
  const std::vector<double> squares = {9, 16, 144};  // norms 3, 4 and 12; of all 13
  const std::vector<double> own = {16};
  const GradientClip whole{ClipScope::global, 1}, by_layer{ClipScope::layer, 1};
  for (int unit = 0; unit < 3; ++unit)
    CHECK(gradient_use(workload(whole), squares, unit).factor == clip_factor(13, 1));
  CHECK(gradient_use(workload(by_layer), own, 1).factor == clip_factor(4, 1));
  CHECK(gradient_use(workload(by_layer, OnNonFinite::skip), squares, 1).factor ==
        clip_factor(4, 1));
  CHECK(gradient_use(workload({}), {}, 1).factor == 1.0f);
  CHECK(gradient_use(workload({}, OnNonFinite::skip), squares, 1).factor == 1.0f);
  // One unit that is not finite: nobody's update is applied.
  for (const float bad : {inf, not_a_number}) {
    const std::vector<double> poisoned = {9, static_cast<double>(bad), 144};
    for (const GradientClip& clip : {GradientClip{}, whole, by_layer})
      CHECK(gradient_use(workload(clip, OnNonFinite::skip), poisoned, 2).skip);
  }
  CHECK_FALSE(gradient_use(workload(whole, OnNonFinite::skip), squares, 2).skip);
}

TEST_CASE("Whatever lies where a frozen unit's norm would be is not read") {
  const std::vector<double> squares = {static_cast<double>(not_a_number), 9, 16, 1e300};
  const std::vector<bool> frozen = {true, false, false, true};
  const GradientClip whole{ClipScope::global, 1}, by_layer{ClipScope::layer, 1};
  for (const OnNonFinite other : {OnNonFinite::stop, OnNonFinite::skip}) {
    CHECK(gradient_use(workload(whole, other), squares, 2, frozen).factor == clip_factor(5, 1));
    CHECK(gradient_use(workload(by_layer, other), squares, 2, frozen).factor == clip_factor(4, 1));
    CHECK_FALSE(gradient_use(workload(whole, other), squares, 2, frozen).skip);
  }
  // A norm of its own alone is no slot of a unit.
  const std::vector<double> own = {16};
  CHECK(gradient_use(workload(by_layer), own, 3, frozen).factor == clip_factor(4, 1));
  CHECK(gradient_use(workload(whole, OnNonFinite::skip), {{9, static_cast<double>(inf), 16, 0}}, 2,
                     frozen)
            .skip);
}

TEST_CASE("AdamW with a factor is AdamW on the scaled gradient, and returns the unscaled squares") {
  const std::size_t n = 4099;
  const std::uint64_t seed = 5;
  INFO("seed " << seed);
  const std::vector<float> gradient = random_values(n, seed), second = random_values(n, seed + 1);
  const float factor = 0.3141f;
  std::vector<float> scaled(n);
  for (std::size_t i = 0; i < n; ++i) scaled[i] = (gradient[i] + second[i]) * factor;
  const auto update = [&](const std::vector<float>& g, const float* other, float f,
                          CpuVariant variant, double& squares) {
    std::vector<float> state(4 * n, 0.5f);
    AdamStep step{1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 3};
    step.gradient_factor = f;
    squares = adamw_update(state.data(), state.data() + n, state.data() + 2 * n, g.data(), other,
                           state.data() + 3 * n, static_cast<std::int64_t>(n), step, variant);
    return state;
  };
  double ignored = 0, squares = 0, unscaled = 0;
  const auto expected = update(scaled, nullptr, 1, CpuVariant::plain, ignored);
  update(gradient, second.data(), 1, CpuVariant::plain, unscaled);
  for (const CpuVariant variant : {CpuVariant::plain, CpuVariant::avx2, CpuVariant::avx512}) {
    if (!cpu_variant_available(variant)) continue;
    CHECK(update(gradient, second.data(), factor, variant, squares) == expected);
    CHECK(squares == unscaled);
  }
}
