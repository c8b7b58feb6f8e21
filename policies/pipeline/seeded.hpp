// Numbers that look random and follow from a seed and a place alone, on every machine.
#pragma once

#include <cstdint>

namespace spillway {

// From 0 to below 1, the `at`-th of those of `seed` (Steele et al., "Fast Splittable Pseudorandom
// Number Generators", OOPSLA 2014).
inline double seeded_uniform(std::uint64_t seed, std::uint64_t at) {
  std::uint64_t x = seed + (at + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1p-53;
}

}  // namespace spillway
