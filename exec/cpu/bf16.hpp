// bfloat16: the upper half of an fp32, rounded to nearest even. The same bits on host and device.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define SPILLWAY_HOST_DEVICE __host__ __device__
#else
#define SPILLWAY_HOST_DEVICE
#endif

namespace spillway {

struct bf16 {
  std::uint16_t bits;
};
static_assert(sizeof(bf16) == 2);

SPILLWAY_HOST_DEVICE inline float to_float(bf16 value) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
#else
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
#endif
}
SPILLWAY_HOST_DEVICE inline float to_float(float value) { return value; }

// NaN stays NaN (quiet), whatever its payload.
SPILLWAY_HOST_DEVICE inline bf16 to_bf16(float value) {
#ifdef __CUDA_ARCH__
  const std::uint32_t bits = __float_as_uint(value);
#else
  const auto bits = std::bit_cast<std::uint32_t>(value);
#endif
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return {static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <class Element>
SPILLWAY_HOST_DEVICE inline Element from_float(float value) {
  if constexpr (sizeof(Element) == sizeof(float)) {
    return value;
  } else {
    return to_bf16(value);
  }
}

}  // namespace spillway
