// Sums over the rows of a matrix, of what a kernel has in registers: blocks of (32, row_warps)
// threads take a tile of 32 packs of columns and a chunk of rows each, a warp every row_warps-th
// row of it. What they leave is for add_partials() (partials.hpp).
#pragma once

#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/partials.hpp"

namespace spillway::cuda {

template <class Element>
constexpr int tile_columns = warp_size* pack_size<Element>;
template <class Element>
using TileSums = float[row_warps][tile_columns<Element>];  // in shared memory

// Adds up the warps' sums of the tile, in order, and calls store(column, sum) for each of its
// columns.
template <class Element, class Store>
__device__ inline void add_up_tile(const float (&sum)[pack_size<Element>], TileSums<Element>& sums,
                                   std::int64_t columns, Store store) {
  constexpr int size = pack_size<Element>, tile = tile_columns<Element>;
  float* const own = &sums[thread_y()][thread_x() * size];
  store_words(own, pack<float>({sum[0], sum[1], sum[2], sum[3]}));
  if constexpr (size == 8) store_words(own + 4, pack<float>({sum[4], sum[5], sum[6], sum[7]}));
  __syncthreads();
  for (int at = thread_y() * warp_size + thread_x(); at < tile; at += warp_size * row_warps) {
    const std::int64_t column = block_x() * tile + at;
    if (column >= columns) continue;
    float total = sums[0][at];
    SPILLWAY_UNROLL
    for (int warp = 1; warp < row_warps; ++warp) total += sums[warp][at];
    store(column, total);
  }
}

// The same, to `partials` (columns) of the block's chunk.
template <class Element>
__device__ inline void add_up_tile(const float (&sum)[pack_size<Element>], TileSums<Element>& sums,
                                   float* partials, std::int64_t columns) {
  add_up_tile<Element>(sum, sums, columns,
                       [&](std::int64_t column, float total) { partials[column] = total; });
}

}  // namespace spillway::cuda
