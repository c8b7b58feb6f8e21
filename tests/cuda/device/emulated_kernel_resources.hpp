// What a kernel takes of a multiprocessor, and what a multiprocessor has: how many blocks of it run
// side by side, and how well a grid of them fills a GPU.
//
// Registers and shared memory of kernels are those of tests/cuda_module/resources.txt, which
// resources_test.py holds against the module wherever nvcc has built one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/rounding.hpp"

namespace spillway::test {

struct KernelResources {
  std::array<int, 3> registers{};  // of a thread, by GpuArchitecture; 0: not compiled for it
  int shared = 0;                  // bytes of fixed size
  int threads = 0;                 // of the largest block
};
// By kernel: "adamw_kernel<float, float>(Update<float, float>)".
std::map<std::string, KernelResources> kernel_resources();

// The name, as in kernel_resources(), of the kernel at this address in the running program; ""
// where there is none.
std::string kernel_at(const void* address);

enum class GpuArchitecture { sm_80, sm_89, sm_90 };
constexpr std::array architectures = {GpuArchitecture::sm_80, GpuArchitecture::sm_89,
                                      GpuArchitecture::sm_90};
inline const char* name_of(GpuArchitecture which) {
  return std::array{"sm_80", "sm_89", "sm_90"}[static_cast<std::size_t>(which)];
}
// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
struct Multiprocessor {
  int threads, shared, blocks;
  static constexpr int registers = 65536;
  static constexpr int shared_of_system = 1024;  // taken for each block
  static constexpr int registers_at_once = 256;  // a warp's are a multiple
};
inline Multiprocessor multiprocessor(GpuArchitecture which) {
  switch (which) {
    case GpuArchitecture::sm_80:
      return {2048, 164 * 1024, 32};
    case GpuArchitecture::sm_89:
      return {1536, 100 * 1024, 24};
    case GpuArchitecture::sm_90:
      break;
  }
  return {2048, 228 * 1024, 32};
}

// Blocks of `threads` threads and `shared` bytes (dynamic and of fixed size) that a multiprocessor
// runs side by side.
inline int blocks_side_by_side(const Multiprocessor& its, int threads, int registers, int shared) {
  const int warps = (threads + 31) / 32, quarters = 4, at_once = Multiprocessor::registers_at_once;
  const int of_warp = round_up(32 * registers, at_once);
  // A quarter of the registers for each quarter of the warps.
  const int most_warps = Multiprocessor::registers / quarters / of_warp * quarters;
  return std::min({its.threads / (32 * warps), most_warps / warps,
                   its.shared / (shared + Multiprocessor::shared_of_system), its.blocks});
}

// The share of `multiprocessors` that is at work until the last block ends, where the blocks of a
// grid take as long as `cost` says, `side_by_side` of them run on a multiprocessor, and the next
// one starts in the order of the grid when one ends. Of blocks that cost the same, beyond one wave:
//   blocks / (waves x side_by_side x multiprocessors).
// Blocks that all run at once share their multiprocessor, so how many it has is what counts:
//   blocks / (most on a multiprocessor x multiprocessors).
double wave_efficiency(const std::vector<double>& cost, int multiprocessors, int side_by_side);
double wave_efficiency(std::int64_t blocks, int multiprocessors, int side_by_side);

}  // namespace spillway::test
