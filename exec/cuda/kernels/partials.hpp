// Sums over rows in two stages: blocks add up the rows that are theirs and leave one partial sum
// per column; then add_partials() sums these up. How many there are depends on shapes only.
#pragma once

#include <cstdint>

#include "exec/cuda/kernels/kernels.hpp"

namespace spillway::cuda {

// Where sums go: output k gets columns [k columns, (k + 1) columns) of the partial sums.
template <class Gradient>
struct ColumnOutputs {
  static constexpr int most = 4;
  Gradient* to[most];
  int count;
  std::int64_t columns;
  bool overwrites;
};

// Sums partials (count, width), width = columns x outputs.
template <class Gradient>
void add_partials(const float* partials, std::int64_t count, const ColumnOutputs<Gradient>& outputs,
                  cudaStream_t stream);

// How norm_backward cuts its rows into blocks.
struct RowBlocks {
  std::int64_t blocks = 0;  // partial sums per column
  std::int64_t team = 0;    // threads that share a row
  std::int64_t teams = 0;   // rows at work in a block
  int held = 0;             // packs of a row in the registers of a thread; 0: none
};
RowBlocks norm_backward_blocks(std::int64_t rows, std::int64_t packs, bool residual_sums);

// How column_sums and gelu_backward cut a matrix (column_tiles.hpp).
constexpr int row_warps = 8;  // rows that a block works on side by side
struct RowChunks {
  std::int64_t tiles = 0;   // blocks side by side that share the columns
  std::int64_t chunks = 0;  // partial sums per column; none of them is of no rows
  std::int64_t rows = 0;    // of a chunk; the last may have fewer
};
RowChunks row_chunks(std::int64_t rows, std::int64_t columns, int pack);

// Elements per partial sum of squares: the CPU's blocks, and those of AdamW.
constexpr int squares_block = 2048;
constexpr int adamw_block = 2048;

}  // namespace spillway::cuda
