// The kernels for AVX-512: vectors of 16 floats.
#include "exec/cpu/kernels_variants.hpp"

#if SPILLWAY_X86_KERNELS
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

// After all other headers: their functions must stay runnable on any CPU.
#pragma GCC target("avx512f,avx512dq")

#define SPILLWAY_KERNEL_VARIANT kernels_avx512
#define SPILLWAY_KERNEL_NAME "avx512"
#define SPILLWAY_KERNEL_WIDTH 16
#include "exec/cpu/kernels_body.hpp"

#endif
