// Stochastic rounding to bf16: what it keeps, that it is unbiased, and that its random bits are
// what they always were: committed moments depend on them.
#include "exec/cpu/stochastic_rounding.hpp"

#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

namespace spillway {
namespace {

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

constexpr std::uint32_t largest_finite = 0x7f7f;  // of bf16

// Bits of one element of unit 3, at step 17 of a training with seed 5.
std::uint32_t noise_at(std::uint32_t element) {
  return element_noise(unit_noise_key(step_noise_key(5, 17), 3, 0), element);
}

}  // namespace

// Of a value between neighbours, the 2^16 - lower half smallest numbers go to the lower one: the
// chance of the upper one is lower half / 2^16, exactly. Checked for every upper half, both signs.
TEST_CASE("a finite value goes to one of its two neighbours, with the chance of its place there") {
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    const std::uint32_t magnitude = upper & 0x7fff;
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0xffffu}) {
      const float value = float_of(upper << 16 | lower);
      if (std::isnan(value)) continue;
      for (const std::uint32_t noise : {0u, 1u, 0x7fffu, 0x8000u, 0xfffeu, 0xffffu}) {
        const std::uint32_t found = round_stochastically(value, noise).bits;
        const bool goes_up = noise >= 0x10000 - lower && magnitude < largest_finite;
        if (found != upper + (goes_up ? 1 : 0)) {
          INFO("value " << value << ", noise " << noise);
          REQUIRE(found == upper + (goes_up ? 1 : 0));
        }
      }
    }
  }
}

TEST_CASE("what bf16 has is kept, finite stays finite, infinite infinite, NaN NaN, signs stay") {
  for (const std::uint32_t noise : {0u, 0x8000u, 0xffffu}) {
    INFO("noise " << noise);
    for (const float exact : {0.0f, -0.0f, 1.0f, -2.5f, INFINITY, -INFINITY, float_of(0x00010000),
                              float_of(largest_finite << 16)})
      CHECK(bits_of(to_float(round_stochastically(exact, noise))) == bits_of(exact));
    // Numbers of fp32 above the largest one of bf16, whose upper neighbour would be infinity.
    for (const std::uint32_t lower : {1u, 0x8000u, 0xffffu}) {
      CHECK(round_stochastically(float_of(largest_finite << 16 | lower), noise).bits ==
            largest_finite);
      CHECK(round_stochastically(float_of(0xff7f0000u | lower), noise).bits == 0xff7f);
    }
    // NaN, also where its payload is in the lower half alone, or would overflow into the sign.
    for (const std::uint32_t nan :
         {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
      CHECK(std::isnan(to_float(round_stochastically(float_of(nan), noise))));
  }
}

// The sum of N roundings of x, a fraction f of the way between neighbours that are s apart, has the
// expected value N x and the variance N s^2 f (1 - f): 4.5 standard errors are exceeded by chance
// once in 150 000 times, and the noise is the same in every run.
TEST_CASE("rounding is unbiased over elements, for either moment") {
  constexpr std::uint32_t n = 1 << 20;
  for (const float x : {1.001f, -0.0123f, 3.9e-7f, 1.9999f, 1e-41f, 777.77f}) {
    const double lower = static_cast<double>(float_of(bits_of(x) & 0xffff0000u));
    const double upper = static_cast<double>(float_of((bits_of(x) & 0xffff0000u) + 0x10000));
    const double f = (static_cast<double>(x) - lower) / (upper - lower);
    const double standard_error = std::abs(upper - lower) * std::sqrt(f * (1 - f) / n);
    double m = 0, v = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t noise = noise_at(i);
      m += static_cast<double>(to_float(round_stochastically(x, noise_of_m(noise))));
      v += static_cast<double>(to_float(round_stochastically(x, noise_of_v(noise))));
    }
    INFO("x " << x);
    CHECK(std::abs(m / n - static_cast<double>(x)) <= 4.5 * standard_error);
    CHECK(std::abs(v / n - static_cast<double>(x)) <= 4.5 * standard_error);
  }
}

// Of 2^20 numbers of 16 bits, each of 256 bins of the upper and of the lower byte expects 4096, and
// chi^2 has 255 degrees of freedom: mean 255, deviation 22.6; below 255 + 5 x 22.6 = 368.
// Correlations of n pairs have a deviation of 1 / sqrt(n): below 5 of them.
TEST_CASE(
    "the random bits are even, and alike in no two elements, steps, units, blocks or moments") {
  constexpr std::uint32_t n = 1 << 20;
  using Noise = std::vector<std::uint32_t>;
  const auto of_key = [](NoiseKey key) {
    Noise noise(n);
    for (std::uint32_t i = 0; i < n; ++i) noise[i] = element_noise(key, i);
    return noise;
  };
  const NoiseKey step = step_noise_key(5, 17);
  const Noise base = of_key(unit_noise_key(step, 3, 0));
  for (const int shift : {0, 8, 16, 24}) {
    std::array<double, 256> count{};
    for (const std::uint32_t one : base) ++count[one >> shift & 0xff];
    double chi_squared = 0;
    for (const double found : count) chi_squared += (found - 4096) * (found - 4096) / 4096;
    INFO("byte at bit " << shift);
    CHECK(chi_squared < 368);
  }
  const auto correlation = [](const auto& a, const auto& b) {
    double sum = 0;  // uniform over [-1, 1): variance 1/3
    for (std::uint32_t i = 0; i < n; ++i) {
      const auto centred = [](std::uint32_t x) { return static_cast<double>(x) / 0x8000 - 1; };
      sum += 3 * centred(a(i)) * centred(b(i));
    }
    return std::abs(sum / n);
  };
  const double bound = 5 / std::sqrt(static_cast<double>(n));
  const auto m_of = [](const Noise& noise, std::uint32_t shift = 0) {
    return [&noise, shift](std::uint32_t i) { return noise_of_m(noise[(i + shift) % n]); };
  };
  const auto v_of = [](const Noise& noise) {
    return [&noise](std::uint32_t i) { return noise_of_v(noise[i]); };
  };
  CHECK(correlation(m_of(base), v_of(base)) < bound);
  for (const std::uint32_t apart : {1u, 2u, 8u, 16u, 256u, 2048u})
    CHECK(correlation(m_of(base), m_of(base, apart)) < bound);
  for (const Noise& other : {of_key(unit_noise_key(step_noise_key(5, 18), 3, 0)),  // the next step
                             of_key(unit_noise_key(step_noise_key(6, 17), 3, 0)),  // another seed
                             of_key(unit_noise_key(step_noise_key(6, 16), 3, 0)),  // both
                             of_key(unit_noise_key(step, 4, 0)),                   // the next unit
                             of_key(unit_noise_key(step, 3, 1))}) {  // the next 2^32 elements
    CHECK(correlation(m_of(base), m_of(other)) < bound);
    CHECK(correlation(v_of(base), v_of(other)) < bound);
    CHECK(correlation(m_of(base), v_of(other)) < bound);
  }
}

TEST_CASE("the random bits of a seed, step, unit and element are what they were") {
  // As worked out by another program (Python's integers) from the definitions.
  const NoiseKey step = step_noise_key(1, 1);
  const NoiseKey unit = unit_noise_key(step, 0, 0);
  CHECK(mixed(0) == 0);
  CHECK(mixed(1) == 0x688990c0u);
  CHECK(step.a == 0x7439611eu);
  CHECK(step.b == 0x5e41ab08u);
  CHECK(element_noise(unit, 0) == 0xf442b392u);
  CHECK(element_noise(unit, 1) == 0xc44ff5abu);
  CHECK(noise_at(123456) == 0xc7f6ec67u);
}

}  // namespace spillway
