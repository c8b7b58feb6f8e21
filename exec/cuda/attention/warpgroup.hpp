// Hopper's matrix instructions (wgmma) and what they need around them: barriers in shared memory,
// the fence between ordinary writes of shared memory and the tensor cores' reads of it, registers
// moved from one warpgroup to another. Compute capability 9.0 only: what includes this is compiled
// for sm_90a.
//
// In the emulator the same names are functions of <emulator/warpgroup.hpp>, which decodes
// descriptors and fragments as documented, and shows missing waits and fences.
//
// A warpgroup is 4 warps, the first of which has a number divisible by 4. Its products run beside
// it; whatever concerns them must be called by all of its threads:
//   products_begin()      before the first product, and after registers of one were touched
//   multiply_...(sums)    starts sums (64 x Columns) += left (64 x 16) right (16 x Columns)
//   products_commit()     closes a group of them
//   products_wait<N>()    until at most N groups are under way; then keep(sums), and they are there
// Until then, nothing may touch the sums, the left operand's registers, or tiles that are read.
//
// Layouts, each with its source (PTX ISA 8 and later, "Asynchronous Warpgroup Level Matrix
// Instructions"; CUTLASS 3, cute/arch/mma_sm90_desc.hpp and cute/atom/mma_traits_sm90_gmma.hpp):
//   * Sums ("Register Fragments and Shared Memory Matrix Layouts", D of m64nNk16): lane l of warp w
//     holds, for every 8 columns j, columns 8 j + 2 (l % 4) and the next of row 16 w + l / 4 in
//     sum[4 j], sum[4 j + 1], and of the row 8 further in sum[4 j + 2], sum[4 j + 3].
//   * A left operand in registers: of its warp's 16 rows as for mma.m16n8k16 (tensor_core.hpp).
//   * Descriptor ("Matrix Descriptor Format"; bit fields of GmmaDescriptor): address >> 4 in bits
//     0-13, leading byte offset >> 4 in 16-29, stride byte offset >> 4 in 32-45, base offset in
//     49-51 (0: patterns begin on 1024 bytes), swizzle in 62-63 (1: 128 bytes).
//   * 128-byte swizzle (Swizzle<3, 4, 3>): bits 4-6 of an address are XORed with its bits 7-9. It
//     is the address in shared memory that counts, so a descriptor may begin within a row of 128
//     bytes: 32 bytes further is the next 16 numbers of every row (as CUTLASS's
//     DescriptorIterator steps).
//   * "K-major" (the inner dimension runs along rows; make_gmma_desc<Major::K>): rows of 128 bytes,
//     8 of them one after the other, the next 8 a stride byte offset further. The leading byte
//     offset is not used.
//   * "MN-major" (the columns of the right operand run along rows; make_gmma_desc<Major::MN>): rows
//     of 64 numbers, one per step of the inner dimension; 8 of them one after the other, the next
//     8 a stride byte offset further; the next 64 columns a leading byte offset further.
#pragma once

#include "exec/cuda/attention/tensor_core.hpp"
#include "exec/cuda/device/launch.hpp"

#ifndef __CUDACC__
#include <emulator/warpgroup.hpp>
#endif

namespace spillway::cuda {

constexpr int warpgroup_size = 128;

// 64 x Columns sums over a warpgroup.
template <int Columns>
struct WarpgroupSums {
  float sum[static_cast<std::size_t>(Columns / 2)];
};

// `value` is the same in all lanes of the warp, and the compiler may know.
__device__ inline int uniform_in_warp(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// The thread's place in its warp, read anew: the compiler keeps nothing made of it in registers
// across a loop that has none to spare.
__device__ inline int lane_anew() {
#ifdef __CUDACC__
  unsigned lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return static_cast<int>(lane);
#else
  return static_cast<int>(threadIdx.x) % warp_size;
#endif
}

// What a descriptor's address field and offsets are made of: 18 bits, without the lowest 4.
__device__ inline std::uint64_t descriptor_field(std::uint32_t bytes) {
  return (bytes & 0x3ffffu) >> 4;
}

// The 32-bit address of shared memory.
__device__ inline std::uint32_t shared_window(SharedAddress address) {
#ifdef __CUDACC__
  return address;
#else
  return ::emulator::shared_window(address);
#endif
}

// Of a matrix with 128-byte swizzle.
__device__ inline std::uint64_t matrix_descriptor(SharedAddress address,
                                                  std::uint32_t leading_bytes,
                                                  std::uint32_t stride_bytes) {
  return descriptor_field(shared_window(address)) | (descriptor_field(leading_bytes) << 16) |
         (descriptor_field(stride_bytes) << 32) | (std::uint64_t{1} << 62);
}

// The same matrix, `bytes` further.
__device__ inline std::uint64_t descriptor_further(std::uint64_t descriptor, std::uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

__device__ inline void products_begin() {
#ifdef __CUDACC__
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  ::emulator::products_begin();
#endif
}

__device__ inline void products_commit() {
#ifdef __CUDACC__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  ::emulator::products_commit();
#endif
}

template <int Groups>
__device__ inline void products_wait() {
#ifdef __CUDACC__
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Groups) : "memory");
#else
  ::emulator::products_wait(Groups);
#endif
}

// The compiler takes `sums` as changed here: it moves no use of them across.
template <int Columns>
__device__ inline void keep([[maybe_unused]] WarpgroupSums<Columns>& sums) {
#ifdef __CUDACC__
  SPILLWAY_UNROLL
  for (int i = 0; i < Columns / 2; ++i) asm volatile("" : "+f"(sums.sum[i])::"memory");
#endif
}

// For a number that is never negative: a branch that is never taken, behind which the compiler
// cannot move what `value` is made of. Before a wait it keeps arithmetic that is meant to run
// beside products from being done after them.
__device__ inline void computed_here(float value) {
  if (value < 0.0f) __trap();
}

#ifdef __CUDACC__
// The operands of the instructions below: 32 or 64 sums, %0 and up.
#define SPILLWAY_4_SUMS(s, i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])
#define SPILLWAY_16_SUMS(s, i)                                                 \
  SPILLWAY_4_SUMS(s, i), SPILLWAY_4_SUMS(s, i + 4), SPILLWAY_4_SUMS(s, i + 8), \
      SPILLWAY_4_SUMS(s, i + 12)
#define SPILLWAY_32_SUMS(s) SPILLWAY_16_SUMS(s, 0), SPILLWAY_16_SUMS(s, 16)
#define SPILLWAY_64_SUMS(s) SPILLWAY_32_SUMS(s), SPILLWAY_16_SUMS(s, 32), SPILLWAY_16_SUMS(s, 48)
#define SPILLWAY_32_NAMES                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPILLWAY_64_NAMES                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#endif

// Both operands in shared memory, both K-major: left is 64 rows x 16, right is Columns rows x 16,
// transposed. Without `accumulate`, what the sums held does not count.
template <int Columns>
__device__ inline void multiply_shared(WarpgroupSums<Columns>& sums, std::uint64_t left,
                                       std::uint64_t right, bool accumulate) {
  static_assert(Columns == 64 || Columns == 128);
#ifdef __CUDACC__
  float* const s = sums.sum;
  if constexpr (Columns == 64) {
    asm volatile(
        "{ .reg .pred accumulate; setp.ne.b32 accumulate, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SPILLWAY_32_NAMES
        "}, %32, %33, accumulate, 1, 1, 0, 0; }"
        : SPILLWAY_32_SUMS(s)
        : "l"(left), "l"(right), "r"(static_cast<int>(accumulate)));
  } else {
    asm volatile(
        "{ .reg .pred accumulate; setp.ne.b32 accumulate, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SPILLWAY_64_NAMES
        "}, %64, %65, accumulate, 1, 1, 0, 0; }"
        : SPILLWAY_64_SUMS(s)
        : "l"(left), "l"(right), "r"(static_cast<int>(accumulate)));
  }
#else
  ::emulator::multiply_shared(sums.sum, Columns, left, right, accumulate);
#endif
}

// Left operand in registers; right is 16 rows x Columns in shared memory, MN-major.
template <int Columns>
__device__ inline void multiply_registers(WarpgroupSums<Columns>& sums, const Matrices& left,
                                          std::uint64_t right, bool accumulate) {
  static_assert(Columns == 64 || Columns == 128);
#ifdef __CUDACC__
  float* const s = sums.sum;
  if constexpr (Columns == 64) {
    asm volatile(
        "{ .reg .pred accumulate; setp.ne.b32 accumulate, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SPILLWAY_32_NAMES
        "}, {%32, %33, %34, %35}, %36, accumulate, 1, 1, 1; }"
        : SPILLWAY_32_SUMS(s)
        : "r"(left.part[0]), "r"(left.part[1]), "r"(left.part[2]), "r"(left.part[3]), "l"(right),
          "r"(static_cast<int>(accumulate)));
  } else {
    asm volatile(
        "{ .reg .pred accumulate; setp.ne.b32 accumulate, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SPILLWAY_64_NAMES
        "}, {%64, %65, %66, %67}, %68, accumulate, 1, 1, 1; }"
        : SPILLWAY_64_SUMS(s)
        : "r"(left.part[0]), "r"(left.part[1]), "r"(left.part[2]), "r"(left.part[3]), "l"(right),
          "r"(static_cast<int>(accumulate)));
  }
#else
  ::emulator::multiply_registers(sums.sum, Columns, left.part, right, accumulate);
#endif
}

#ifdef __CUDACC__
#undef SPILLWAY_4_SUMS
#undef SPILLWAY_16_SUMS
#undef SPILLWAY_32_SUMS
#undef SPILLWAY_64_SUMS
#undef SPILLWAY_32_NAMES
#undef SPILLWAY_64_NAMES
#endif

// Tensor cores read shared memory through the "async proxy": a thread that wrote there by stores or
// copies (which have arrived) calls this before the barrier after which they may read it.
__device__ inline void fence_for_products() {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  ::emulator::fence_for_products();
#endif
}

// --- Barriers in shared memory ("mbarrier"), 8 bytes each. A phase ends with the `count`-th
// arrival; waiting for parity p goes on as soon as the phase of that parity has ended (at first,
// phase 0 is under way, and a wait for parity 1 does not wait).
constexpr int shared_barrier_bytes = 8;

// By one thread; the others may use it after a __syncthreads().
__device__ inline void barrier_init(SharedAddress barrier, int count) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
#else
  ::emulator::barrier_init(barrier, count);
#endif
}

// What the thread read and wrote before is done for whoever waits.
__device__ inline void barrier_arrive(SharedAddress barrier) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#else
  ::emulator::barrier_arrive(barrier);
#endif
}

#ifdef __CUDACC__
__device__ inline bool barrier_try_wait(SharedAddress barrier, int parity) {
  std::uint32_t done;
  asm volatile(
      "{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; "
      "selp.u32 %0, 1, 0, done; }"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

#endif

// A wait of 20 s is an error of ours: it ends the kernel, rather than hang.
__device__ inline void barrier_wait(SharedAddress barrier, int parity) {
#ifdef __CUDACC__
  if (barrier_try_wait(barrier, parity)) return;
  constexpr std::uint64_t limit_ns = 20'000'000'000ull;
  std::uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  while (!barrier_try_wait(barrier, parity)) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (now - start > limit_ns) __trap();
  }
#else
  ::emulator::barrier_wait(barrier, parity);
#endif
}

// The threads of one warpgroup wait for each other; `number` is its own (0 .. 14).
__device__ inline void warpgroup_barrier(int number) {
#ifdef __CUDACC__
  asm volatile("bar.sync %0, %1;" ::"r"(number + 1), "n"(warpgroup_size) : "memory");
#else
  ::emulator::named_barrier(number + 1, warpgroup_size);
#endif
}

// Registers per thread of this warpgroup from here on: fewer, or more once others gave theirs.
template <int Registers>
__device__ inline void fewer_registers() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}
template <int Registers>
__device__ inline void more_registers() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}

}  // namespace spillway::cuda
