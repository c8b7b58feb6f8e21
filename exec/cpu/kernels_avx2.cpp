// The kernels for AVX2: vectors of 8 floats.
#include "exec/cpu/kernels_variants.hpp"

#if SPILLWAY_X86_KERNELS
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

// After all other headers: their functions must stay runnable on any CPU.
#pragma GCC target("avx2")

#define SPILLWAY_KERNEL_VARIANT kernels_avx2
#define SPILLWAY_KERNEL_NAME "avx2"
#define SPILLWAY_KERNEL_WIDTH 8
#include "exec/cpu/kernels_body.hpp"

#endif
