// The kernels for any CPU: vectors of 4 floats (SSE2 on x86-64, NEON on AArch64).
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "exec/cpu/kernels_variants.hpp"

#define SPILLWAY_KERNEL_VARIANT kernels_plain
#define SPILLWAY_KERNEL_NAME "plain"
#define SPILLWAY_KERNEL_WIDTH 4
#include "exec/cpu/kernels_body.hpp"
