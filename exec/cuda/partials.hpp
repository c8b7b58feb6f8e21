// Sums over rows in two stages: blocks add up the rows that are theirs and leave one partial sum
// per column; then add_partials() sums these up. How many there are depends on shapes only.
#pragma once

#include <cstdint>

#include "exec/cuda/kernels.hpp"

namespace spillway::cuda {

// Where sums go: `first` gets columns [0, columns), `second` (may be null) the as many behind.
template <class Gradient>
struct ColumnOutputs {
  Gradient *first, *second;
  std::int64_t columns;
  bool overwrites;
};

// Sums partials (count, width), width = columns or, with a second output, twice as many.
template <class Gradient>
void add_partials(const float* partials, std::int64_t count, const ColumnOutputs<Gradient>& outputs,
                  cudaStream_t stream);

// How norm_backward and column_sums cut their rows: into blocks that fill a GPU of 132
// multiprocessors at once.
struct RowBlocks {
  std::int64_t blocks = 0;  // partial sums per column
  std::int64_t team = 0;    // threads that share a row
  std::int64_t teams = 0;   // rows at work in a block
};
RowBlocks norm_backward_blocks(std::int64_t rows, std::int64_t packs);
// `tiles`: blocks side by side that share the columns.
std::int64_t column_sum_chunks(std::int64_t rows, std::int64_t tiles);

// Elements per partial sum of squares: the CPU's blocks, and those of AdamW.
constexpr int squares_block = 2048;
constexpr int adamw_block = 4096;

}  // namespace spillway::cuda
