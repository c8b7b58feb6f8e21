// The tables of the three compilations of kernels_body.hpp; use cpu_kernels() of kernels_cpu.hpp.
#pragma once

#include "exec/cpu/kernels_cpu.hpp"

// The wide variants need GCC's `#pragma GCC target` and an x86-64 CPU.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SPILLWAY_X86_KERNELS 1
#else
#define SPILLWAY_X86_KERNELS 0
#endif

namespace spillway {

namespace kernels_plain {
extern const CpuKernels table;
}
namespace kernels_avx2 {
extern const CpuKernels table;
}
namespace kernels_avx512 {
extern const CpuKernels table;
}

}  // namespace spillway
