// What kernels share: 16-byte packs of elements, arithmetic that no compiler contracts, fast
// exponentials, and sums over warps and blocks in a fixed order. For device code only.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/errors.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/kernels/bf16.hpp"

#ifdef __CUDACC__
#define SPILLWAY_UNROLL _Pragma("unroll")
#else
#include <emulator/warpgroup.hpp>
#define SPILLWAY_UNROLL
#endif

namespace spillway::cuda {

__device__ inline int thread_x() { return static_cast<int>(threadIdx.x); }
__device__ inline int thread_y() { return static_cast<int>(threadIdx.y); }
__device__ inline int threads_x() { return static_cast<int>(blockDim.x); }
__device__ inline std::int64_t block_x() { return static_cast<std::int64_t>(blockIdx.x); }
__device__ inline std::int64_t block_y() { return static_cast<std::int64_t>(blockIdx.y); }

// ---- packs: what one thread reads or writes at once ----

struct alignas(16) Words {
  std::uint32_t word[4];
};
template <class Element>
constexpr int pack_size = 16 / static_cast<int>(sizeof(Element));

template <class T>
__device__ inline Words load_words(const T* p) {
#ifdef __CUDACC__
  return *reinterpret_cast<const Words*>(p);
#else
  SPILLWAY_ASSERT(reinterpret_cast<std::uintptr_t>(p) % sizeof(Words) == 0);
  Words words;
  std::memcpy(&words, p, sizeof words);
  return words;
#endif
}
template <class T>
__device__ inline void store_words(T* p, const Words& words) {
#ifdef __CUDACC__
  *reinterpret_cast<Words*>(p) = words;
#else
  SPILLWAY_ASSERT(reinterpret_cast<std::uintptr_t>(p) % sizeof(Words) == 0);
  std::memcpy(p, &words, sizeof words);
#endif
}

// Two numbers rounded to bf16, `low` in the lower half. NaN becomes some NaN.
__device__ inline std::uint32_t two_bf16(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return static_cast<std::uint32_t>(to_bf16(high).bits) << 16 | to_bf16(low).bits;
#endif
}

template <class Element>
__device__ inline void unpack(const Words& words, float (&x)[pack_size<Element>]) {
  SPILLWAY_UNROLL
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<Element, float>) {
      x[i] = __uint_as_float(words.word[i]);
    } else {
      x[2 * i] = __uint_as_float(words.word[i] << 16);
      x[2 * i + 1] = __uint_as_float(words.word[i] & 0xffff0000u);
    }
  }
}
template <class Element>
__device__ inline Words pack(const float (&x)[pack_size<Element>]) {
  Words words;
  SPILLWAY_UNROLL
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<Element, float>)
      words.word[i] = __float_as_uint(x[i]);
    else
      words.word[i] = two_bf16(x[2 * i], x[2 * i + 1]);
  }
  return words;
}

// ---- arithmetic with one rounding per operation, whatever compilers contract ----

__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float subtract(float a, float b) { return __fsub_rn(a, b); }
__device__ inline float multiply(float a, float b) { return __fmul_rn(a, b); }
// a b + c, rounded once.
__device__ inline float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline float square_root(float a) { return __fsqrt_rn(a); }
__device__ inline double add(double a, double b) { return __dadd_rn(a, b); }

// ---- exponentials ----

// exp(x) as accurate as Element can show: within 2 units in the last place for float; for bf16 with
// a relative error below 2^-18, at the price of two instructions, and 0 where it is not normal.
template <class Element>
__device__ inline float exponential(float x) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<Element, bf16>) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504088896341f));
    return result;
  } else {
    return expf(x);
  }
#else
  return std::exp(x);
#endif
}
// 1 / x, for bf16 within 2^-22; x is not 0.
template <class Element>
__device__ inline float reciprocal(float x) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<Element, bf16>) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  } else {
    return __frcp_rn(x);
  }
#else
  return 1.0f / x;
#endif
}

// ---- waiting ----

// Some warps of a block, `threads` in all, wait for each other, and for no others. `number`: which
// group of warps it is, 0 to 14.
__device__ inline void warps_barrier(int number, int threads) {
#ifdef __CUDACC__
  asm volatile("bar.sync %0, %1;" ::"r"(number + 1), "r"(threads) : "memory");  // 0: __syncthreads
#else
  ::emulator::named_barrier(number + 1, threads);
#endif
}

// ---- sums ----

constexpr unsigned full_warp = 0xffffffffu;

// The sum over a warp, with the same bits in all lanes: lane j and j ^ 16 first, then 8, .. 1.
template <class Number>
__device__ inline Number warp_sum(Number value) {
  SPILLWAY_UNROLL
  for (int step = warp_size / 2; step > 0; step /= 2)
    value = add(value, __shfl_xor_sync(full_warp, value, step));
  return value;
}
__device__ inline float warp_maximum(float value) {
  SPILLWAY_UNROLL
  for (int step = warp_size / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(full_warp, value, step));
  return value;
}

// ---- launching ----

inline std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline unsigned grid_size(std::int64_t blocks) {
  SPILLWAY_ASSERT(blocks >= 1 && blocks <= 0x7fffffff);
  return static_cast<unsigned>(blocks);
}
inline bool on_16_bytes(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

}  // namespace spillway::cuda
