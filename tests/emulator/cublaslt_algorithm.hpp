// The algorithms of the emulated cuBLASLt: in which order each adds up, and how they are kept in a
// cublasLtMatmulAlgo_t.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

#include "tests/emulator/cublaslt_product.hpp"

namespace emulator {

// Ranks of the heuristics, 0 the first; and of each how it adds up. Some are refused for small
// sums, for alignments, or because of the reductions that are allowed.
constexpr int algorithm_count = 8;
struct Order {
  int parts = 1;           // into which the sum is split, which are added up one after the other
  bool backwards = false;  // from the last product to the first
};
Order order_of(int algorithm);

// What of an algorithm lies where in its data.
enum Slot : std::size_t {
  problem_slot,
  workspace_slot,
  alignment_a,
  alignment_b,
  alignment_c,
  alignment_d,
  number_slot
};

// Whether the heuristics offer it for a sum of k products under this preference.
bool offered(int algorithm, std::int64_t k, std::uint32_t reductions);

}  // namespace emulator
