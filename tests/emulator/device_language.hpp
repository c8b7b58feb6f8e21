// CUDA C++ as plain C++: the words of the language, where a thread is, barriers, shuffles, atomics.
// Numbers are in device_math.hpp.
//
// A thread of the operating system runs one block at a time, so that a block's shared arrays are
// its static thread_local ones. They hold what the block before left there; dynamic shared memory
// is NaN at first.
#pragma once

#include <vector_types.h>

#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>
#include <type_traits>

#include "tests/emulator/block.hpp"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__

inline constinit thread_local uint3 threadIdx{0, 0, 0};
inline constinit thread_local uint3 blockIdx{0, 0, 0};
inline constinit thread_local dim3 blockDim{1, 1, 1};
inline constinit thread_local dim3 gridDim{1, 1, 1};
constexpr int warpSize = 32;

namespace emulator {

// What every lane of a warp gave: deposits[lane]. Valid until the calling lane's next exchange.
// All lanes in `mask` take part; those that are not have bytes of all ones.
template <class T>
const T* warp_exchange(const T& value, unsigned mask = full_mask,
                       const std::source_location& where = std::source_location::current()) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= exchange_bytes);
  return static_cast<const T*>(exchange(mask, &value, sizeof(T), where));
}

// The value of lane `source`, which takes part.
template <class T>
T from_lane(const T* deposits, int source, unsigned mask) {
  if (((mask & existing_lanes()) >> source & 1u) == 0)
    fail_thread("reads lane " + std::to_string(source) + ", which is not in the mask or the block");
  return deposits[source];
}

inline int segment(int width) {
  if (width < 1 || width > warp_lanes || !std::has_single_bit(static_cast<unsigned>(width)))
    fail_thread("the width of a shuffle is " + std::to_string(width) +
                ", not a power of two to 32");
  return lane_index() & ~(width - 1);
}

}  // namespace emulator

#define EMULATOR_WHERE const std::source_location& where = std::source_location::current()

inline void __syncthreads(EMULATOR_WHERE) { emulator::block_barrier(where); }
inline void __syncwarp(unsigned mask = emulator::full_mask, EMULATOR_WHERE) {
  emulator::exchange(mask, nullptr, 0, where);
}

namespace emulator {
template <class T>
concept Shuffled = std::is_arithmetic_v<T> &&(sizeof(T) == 4 || sizeof(T) == 8);
}

template <emulator::Shuffled T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATOR_WHERE) {
  const T* all = emulator::warp_exchange(value, mask, where);
  return emulator::from_lane(all, emulator::segment(width) + (source & (width - 1)), mask);
}
template <emulator::Shuffled T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_WHERE) {
  const T* all = emulator::warp_exchange(value, mask, where);
  const int source = emulator::lane_index() - static_cast<int>(delta);
  if (source < emulator::segment(width)) return value;
  return emulator::from_lane(all, source, mask);
}
template <emulator::Shuffled T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_WHERE) {
  const T* all = emulator::warp_exchange(value, mask, where);
  const int source = emulator::lane_index() + static_cast<int>(delta);
  if (source >= emulator::segment(width) + width) return value;
  return emulator::from_lane(all, source, mask);
}
template <emulator::Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMULATOR_WHERE) {
  const T* all = emulator::warp_exchange(value, mask, where);
  const int source = emulator::lane_index() ^ lane_mask;
  if (source >= emulator::segment(width) + width) return value;
  return emulator::from_lane(all, source, mask);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_WHERE) {
  const int* all = emulator::warp_exchange(predicate, mask, where);
  unsigned ballot = 0;
  for (int lane = 0; lane < emulator::warp_lanes; ++lane)
    if (((mask & emulator::existing_lanes()) >> lane & 1u) != 0 && all[lane] != 0)
      ballot |= 1u << lane;
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate, EMULATOR_WHERE) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMULATOR_WHERE) {
  return __ballot_sync(mask, predicate, where) == (mask & emulator::existing_lanes());
}
#undef EMULATOR_WHERE

inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() {}
[[noreturn]] inline void __trap() { emulator::fail_thread("__trap()"); }

template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}

// Atomics on integers only: sums of numbers in the order of arrival are not deterministic.
template <std::integral T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}
template <std::integral T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);
}
template <std::integral T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
template <std::integral T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  T old = __atomic_load_n(address, __ATOMIC_SEQ_CST);
  while (old < value && !__atomic_compare_exchange_n(address, &old, value, false, __ATOMIC_SEQ_CST,
                                                     __ATOMIC_SEQ_CST)) {
  }
  return old;
}
