#include "exec/data/element_type.hpp"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using namespace spillway;

TEST_CASE("every half-precision number is widened exactly") {
  // (-1)^s 2^(e - 15) (1 + m / 1024), or (-1)^s 2^-14 m / 1024 where e = 0.
  std::vector<std::uint16_t> bits(1 << 16);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  std::vector<float> values(bits.size());
  widen(ElementType::f16, reinterpret_cast<const std::byte*>(bits.data()), bits.size(),
        values.data());
  int wrong = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), mantissa = static_cast<int>(i & 1023);
    const double sign = i >> 15 ? -1 : 1;
    if (exponent == 31) {
      const bool right = mantissa != 0
                             ? std::isnan(values[i])
                             : values[i] == sign * std::numeric_limits<double>::infinity();
      wrong += !right;
      continue;
    }
    const double expected = exponent == 0 ? sign * std::ldexp(mantissa, -24)
                                          : sign * std::ldexp(1024 + mantissa, exponent - 25);
    wrong += values[i] != expected || std::signbit(values[i]) != (sign < 0);
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16 is the upper half of fp32, and fp32 is rounded to it to nearest even") {
  // 1 + 2^-8 is halfway between 1 and 1 + 2^-7: even is 1. 1 + 3 2^-8 goes up to 1 + 2^-6.
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1.0f, -2.5f, 1.00390625f, 1.01171875f,
                                     0.0f, -0.0f, infinity,    -std::numeric_limits<float>::max()};
  std::vector<std::byte> narrow_bytes(2 * values.size() + 1);
  narrow(ElementType::bf16, values.data(), values.size(), narrow_bytes.data() + 1);  // unaligned
  std::vector<float> back(values.size());
  widen(ElementType::bf16, narrow_bytes.data() + 1, values.size(), back.data());
  const std::vector<float> expected = {1.0f, -2.5f, 1.0f,     1.015625f,
                                       0.0f, -0.0f, infinity, -infinity};
  // By their bits: -0 equals 0 otherwise.
  CHECK(std::memcmp(back.data(), expected.data(), back.size() * sizeof(float)) == 0);
  const float nan = std::bit_cast<float>(0x7f800001u);  // whose upper half alone is infinity
  narrow(ElementType::bf16, &nan, 1, narrow_bytes.data());
  widen(ElementType::bf16, narrow_bytes.data(), 1, back.data());
  CHECK(std::isnan(back[0]));
}

TEST_CASE("fp32 keeps its bits, NaN's too") {
  const float nan = std::bit_cast<float>(0x7fa12345u);
  std::byte bytes[4];
  float back = 0;
  narrow(ElementType::f32, &nan, 1, bytes);
  widen(ElementType::f32, bytes, 1, &back);
  CHECK(std::bit_cast<std::uint32_t>(back) == 0x7fa12345u);
}
