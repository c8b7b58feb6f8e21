// An order of 0 .. count - 1 that looks random and takes no memory: element i of it is computed.
#pragma once

#include <cstdint>

namespace spillway {

// A Feistel network over the next power of four, walked until it comes to a number below `count`
// (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002: cycle walking). Two
// permutations of different keys have nothing to do with each other.
class Permutation {
 public:
  Permutation(std::uint64_t count, std::uint64_t key);

  std::uint64_t count() const { return count_; }
  // `index` and the result are below count().
  std::uint64_t operator()(std::uint64_t index) const;

 private:
  std::uint64_t count_, key_;
  int half_bits_ = 1;
};

}  // namespace spillway
