// Stochastic rounding of Adam's moments to bf16, the same bits on host and device.
//
// A finite value between two neighbours of bf16 goes to the upper one (in magnitude) with the
// chance of its distance from the lower one, so that the expected result is the value: a second
// moment that each step changes by less than half of bf16's spacing still moves, where rounding to
// nearest would hold it for ever. A value that bf16 has is kept, and so are its sign, zero and
// infinity. NaN stays NaN. Above the largest finite number of bf16 magnitudes are cut, so that
// nothing finite becomes infinite.
//
// The random bits are a function of the training's seed, the step, the unit, the element and which
// moment, by a hash instead of a generator with a state: they do not depend on who updates an
// element, in which pieces or in which order. One hash of 32 bits serves an element: its lower half
// for m, its upper half for v.
#pragma once

#include <bit>
#include <cstdint>

#include "exec/cpu/bf16.hpp"

namespace spillway {

struct NoiseKey {
  std::uint32_t a = 0, b = 0;
};

// A bijection of 32 bits of which every bit of the input changes each bit of the output with a
// chance of about one half: "lowbias32" of Chris Wellons' hash prospector.
SPILLWAY_HOST_DEVICE inline std::uint32_t mixed(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// Of one step: the 64 bits of splitmix64 (Steele, Lea and Flood, 2014) at a place of its own.
inline NoiseKey step_noise_key(std::uint64_t seed, std::int64_t step) {
  const auto finished = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
  const std::uint64_t key =
      finished(finished(seed + golden) + golden * static_cast<std::uint64_t>(step));
  return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

// Of 2^32 elements of a unit: `block` is the upper half of their 64-bit numbers.
SPILLWAY_HOST_DEVICE inline NoiseKey unit_noise_key(NoiseKey step, std::uint32_t unit,
                                                    std::uint32_t block) {
  const std::uint32_t place = mixed(mixed(unit + 0x9e3779b9u) + block);
  return {mixed(step.a ^ place), mixed(step.b + place)};
}

// Of one element, by the lower half of its number. The key's first half decides which elements get
// which bits of a step; its second half makes those of one element even and independent over steps.
SPILLWAY_HOST_DEVICE inline std::uint32_t element_noise(NoiseKey unit, std::uint32_t element) {
  return mixed(element ^ unit.a) ^ unit.b;
}
SPILLWAY_HOST_DEVICE inline std::uint32_t noise_of_m(std::uint32_t noise) {
  return noise & 0xffffu;
}
SPILLWAY_HOST_DEVICE inline std::uint32_t noise_of_v(std::uint32_t noise) { return noise >> 16; }

// `noise`: 16 bits.
SPILLWAY_HOST_DEVICE inline bf16 round_stochastically(float value, std::uint32_t noise) {
#ifdef __CUDA_ARCH__
  const std::uint32_t bits = __float_as_uint(value);
#else
  const auto bits = std::bit_cast<std::uint32_t>(value);
#endif
  constexpr std::uint32_t largest_finite = 0x7f7f0000u, infinity = 0x7f800000u, quiet = 0x00400000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t result = magnitude < largest_finite ? bits + noise : bits;
  if (magnitude > infinity) result |= quiet;
  return {static_cast<std::uint16_t>(result >> 16)};
}

}  // namespace spillway
