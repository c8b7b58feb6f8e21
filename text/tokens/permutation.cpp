#include "text/tokens/permutation.hpp"

#include <xxhash.h>

#include <array>

#include "base/errors.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t rounds = 6;

}  // namespace

Permutation::Permutation(std::uint64_t count, std::uint64_t key) : count_(count), key_(key) {
  SPILLWAY_ASSERT(count > 0 && count <= std::uint64_t{1} << 62);
  while (std::uint64_t{1} << 2 * half_bits_ < count) ++half_bits_;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  SPILLWAY_ASSERT(index < count_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = index >> half_bits_, right = index & mask;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::array<std::uint64_t, 2> counter = {round, right};
      const std::uint64_t random = XXH3_64bits_withSeed(counter.data(), sizeof counter, key_);
      const std::uint64_t next = left ^ (random & mask);
      left = right;
      right = next;
    }
    index = left << half_bits_ | right;
  } while (index >= count_);
  return index;
}

}  // namespace spillway
