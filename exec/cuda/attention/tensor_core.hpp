// The instructions below CUDA C++ that attention is made of: bf16 matrix products of a warp
// (mma.sync), their operands from shared memory (ldmatrix), copies from global to shared memory
// that run while the block computes (cp.async), and the approximate power of two (ex2).
//
// Compute capability 8.0 and up. In the emulator the same names are functions of
// <emulator/tensor_core.hpp>, with the fragments of the PTX ISA ("Matrix Fragments for
// mma.m16n8k16", "ldmatrix") and copies that arrive at their wait and not before. Whatever concerns
// a warp must be called by all of its threads together.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "exec/cuda/kernels/bf16.hpp"

#ifdef __CUDACC__
#define SPILLWAY_UNROLL _Pragma("unroll")
#else
#include <emulator/tensor_core.hpp>
#define SPILLWAY_UNROLL
#endif

namespace spillway::cuda {

// Four 8 x 8 matrices of bf16 over a warp, one register each: lane l holds columns 2 (l % 4) and
// the next (low half first) of row l / 4.
//
// The left operand (16 x 16) of a product is the four of {rows 0-7, rows 8-15} x {columns 0-7},
// then x {columns 8-15}. The right operand (16 x 8) is two registers, of the *transposed* matrix:
// lane l holds rows 2 (l % 4) and the next of column l / 4; first rows 0-7, then rows 8-15.
struct Matrices {
  std::uint32_t part[4];
};

// A 16 x 8 matrix of sums over a warp: lane l holds columns 2 (l % 4) and the next of row l / 4
// (sum[0], sum[1]) and of row l / 4 + 8 (sum[2], sum[3]). Two of these side by side, rounded, are a
// left operand without any exchange: left_operand().
struct Sums {
  float sum[4];
};

// Where in shared memory, in bytes: a 32-bit address on the device.
#ifdef __CUDACC__
using SharedAddress = std::uint32_t;
__device__ inline SharedAddress shared_address(const void* pointer) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}
#else
using SharedAddress = const unsigned char*;
inline SharedAddress shared_address(const void* pointer) {
  return static_cast<const unsigned char*>(pointer);
}
#endif

// Loads four matrices. Lane l gives the address (16-byte aligned) of row l % 8 of matrix l / 8: 8
// consecutive bf16.
__device__ inline Matrices load_matrices(SharedAddress row) {
  Matrices m;
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.part[0]), "=r"(m.part[1]), "=r"(m.part[2]), "=r"(m.part[3])
               : "r"(row));
#else
  ::emulator::load_matrices(m.part, row, false);
#endif
  return m;
}

// The same, each matrix transposed: lane l gets rows 2 (l % 4) and the next of column l / 4.
__device__ inline Matrices load_matrices_transposed(SharedAddress row) {
  Matrices m;
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.part[0]), "=r"(m.part[1]), "=r"(m.part[2]), "=r"(m.part[3])
               : "r"(row));
#else
  ::emulator::load_matrices(m.part, row, true);
#endif
  return m;
}

// sums += left (16 x 16) right (16 x 8), products and sums in fp32.
__device__ inline void multiply_add(Sums& sums, const Matrices& left, std::uint32_t right_low,
                                    std::uint32_t right_high) {
#ifdef __CUDACC__
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums.sum[0]), "+f"(sums.sum[1]), "+f"(sums.sum[2]), "+f"(sums.sum[3])
      : "r"(left.part[0]), "r"(left.part[1]), "r"(left.part[2]), "r"(left.part[3]), "r"(right_low),
        "r"(right_high));
#else
  ::emulator::multiply_add(sums.sum, left.part, right_low, right_high);
#endif
}

// Two numbers rounded to bf16 (nearest even), `low` in the lower half.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
#ifdef __CUDACC__
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#else
  return static_cast<std::uint32_t>(to_bf16(low).bits) |
         (static_cast<std::uint32_t>(to_bf16(high).bits) << 16);
#endif
}

// The left operand that two matrices of sums, side by side, make.
__device__ inline Matrices left_operand(const Sums& low, const Sums& high) {
  return {{pack_bf16(low.sum[0], low.sum[1]), pack_bf16(low.sum[2], low.sum[3]),
           pack_bf16(high.sum[0], high.sum[1]), pack_bf16(high.sum[2], high.sum[3])}};
}

// Starts a copy of 16 bytes (both sides 16-byte aligned) or, if not `valid`, of zeros; `global` is
// then not read. It belongs to the group that the thread's next copy_commit() closes.
__device__ inline void copy_async_16(SharedAddress shared, const void* global, bool valid) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
#else
  ::emulator::copy_async(shared, global, 16, valid);
#endif
}

// The same with 4 bytes.
__device__ inline void copy_async_4(SharedAddress shared, const void* global, bool valid) {
#ifdef __CUDACC__
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 4 : 0)
               : "memory");
#else
  ::emulator::copy_async(shared, global, 4, valid);
#endif
}

__device__ inline void copy_commit() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  ::emulator::copy_commit();
#endif
}

// Waits until at most `Groups` of the thread's own groups are still under way. What other threads
// copied is there after a __syncthreads() that follows *their* wait.
template <int Groups>
__device__ inline void copy_wait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
#else
  ::emulator::copy_wait(Groups);
#endif
}

// 2^x to about 2 units in the last place; 0 for -infinity, and where the result would be subnormal.
__device__ inline float exp2_approximate(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return ::emulator::exp2_approximate(x);
#endif
}

// Whether `condition` holds in any thread of the warp.
__device__ inline bool any_in_warp(bool condition) {
  return __any_sync(0xffffffffu, condition) != 0;
}

}  // namespace spillway::cuda
