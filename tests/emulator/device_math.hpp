// The functions on numbers that CUDA adds to those of <math.h>. Those whose result CUDA promises
// (the _rn ones, conversions, bits) have its bits; the approximate ones (__expf, rsqrtf, ...) are
// the C library's, and so more exact than CUDA's.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <type_traits>

// CUDA's min and max take mixed arguments, and of two numbers return the one that is not NaN.
namespace emulator {
template <class T>
concept Number = std::is_arithmetic_v<T>;
}
template <emulator::Number A, emulator::Number B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmin(static_cast<T>(a), static_cast<T>(b));
  } else {
    return std::min(static_cast<T>(a), static_cast<T>(b));
  }
}
template <emulator::Number A, emulator::Number B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmax(static_cast<T>(a), static_cast<T>(b));
  } else {
    return std::max(static_cast<T>(a), static_cast<T>(b));
  }
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __drcp_rn(double a) { return 1.0 / a; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline double rsqrt(double a) { return 1.0 / std::sqrt(a); }
inline float __frsqrt_rn(float a) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a)));
}
inline float __expf(float a) { return std::exp(a); }
inline float __logf(float a) { return std::log(a); }
inline float __log2f(float a) { return std::log2(a); }
inline float __powf(float a, float b) { return std::pow(a, b); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __tanhf(float a) { return std::tanh(a); }
inline float __saturatef(float a) { return std::fmin(std::fmax(a, 0.0f), 1.0f); }

inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline long long __double_as_longlong(double a) { return std::bit_cast<long long>(a); }
inline double __longlong_as_double(long long a) { return std::bit_cast<double>(a); }

inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
inline float __ll2float_rn(long long a) { return static_cast<float>(a); }
inline double __int2double_rn(int a) { return static_cast<double>(a); }
inline double __ll2double_rn(long long a) { return static_cast<double>(a); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }
inline int __float2int_rn(float a) { return static_cast<int>(std::nearbyint(a)); }
inline int __float2int_rz(float a) { return static_cast<int>(a); }

inline int __popc(unsigned a) { return std::popcount(a); }
inline int __clz(int a) { return std::countl_zero(static_cast<unsigned>(a)); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __popcll(unsigned long long a) { return std::popcount(a); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((std::uint64_t{a} * b) >> 32);
}
// Byte i of the result is byte (selector >> 4 i & 7) of the eight bytes of b:a.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = selector >> (4 * i) & 7u;
    result |= static_cast<unsigned>(bytes >> (8 * from) & 0xffu) << (8 * i);
  }
  return result;
}
