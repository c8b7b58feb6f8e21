#include "exec/cpu/kernels_cpu.hpp"

#include "base/errors.hpp"
#include "exec/cpu/kernels_variants.hpp"

namespace spillway {

bool cpu_variant_available(CpuVariant variant) {
  switch (variant) {
    case CpuVariant::plain:
      return true;
#if SPILLWAY_X86_KERNELS
    case CpuVariant::avx2:
      return __builtin_cpu_supports("avx2") != 0;
    case CpuVariant::avx512:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0;
#endif
    default:
      return false;
  }
}

CpuVariant best_cpu_variant() {
  if (cpu_variant_available(CpuVariant::avx512)) return CpuVariant::avx512;
  if (cpu_variant_available(CpuVariant::avx2)) return CpuVariant::avx2;
  return CpuVariant::plain;
}

const CpuKernels& cpu_kernels(CpuVariant variant) {
  if (!cpu_variant_available(variant)) {
    throw MachineError("this CPU cannot run the chosen kernel variant",
                       "use the plain variant, or let Spillway choose");
  }
#if SPILLWAY_X86_KERNELS
  if (variant == CpuVariant::avx512) return kernels_avx512::table;
  if (variant == CpuVariant::avx2) return kernels_avx2::table;
#endif
  return kernels_plain::table;
}

}  // namespace spillway
