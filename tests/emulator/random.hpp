// A small generator of repeatable pseudo-random numbers: splitmix64 (Steele, Lea and Flood, 2014).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace emulator {

inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}
  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15ull); }
  // In [0, count); count > 0.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(next() % count); }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace emulator
