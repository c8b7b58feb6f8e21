// Sums over rows, of partial sums, and of losses.
//
// column_sums reads x once (2 bytes of an element in bf16) and leaves 4 bytes per column and chunk
// of rows: 8192 tiles of 256 columns at the most, 8.4 MB, which stay in the L2 cache.
#include <algorithm>

#include "exec/cuda/kernels/column_tiles.hpp"
#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/kernels/partials.hpp"

namespace spillway::cuda {

namespace {

// ---- column sums ----

constexpr int in_flight = 4;  // loads of a thread

// Partials (chunks, columns).
template <class Element>
__global__ void __launch_bounds__(warp_size* row_warps)
    column_sums_kernel(const Element* __restrict__ x, float* __restrict__ partials,
                       std::int64_t rows, std::int64_t columns, std::int64_t chunk_rows) {
  constexpr int size = pack_size<Element>;
  __shared__ __align__(16) TileSums<Element> sums;
  const std::int64_t column = block_x() * tile_columns<Element> + thread_x() * size;
  const std::int64_t begin = block_y() * chunk_rows;
  const std::int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float sum[size] = {};
  if (column < columns) {
    for (std::int64_t row = begin + thread_y(); row < end; row += row_warps * in_flight) {
      Words words[in_flight];
      SPILLWAY_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        if (row + k * row_warps < end)
          words[k] = load_words(x + (row + k * row_warps) * columns + column);
      }
      SPILLWAY_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        if (row + k * row_warps >= end) continue;
        float value[size];
        unpack<Element>(words[k], value);
        SPILLWAY_UNROLL
        for (int i = 0; i < size; ++i) sum[i] += value[i];
      }
    }
  }
  add_up_tile<Element>(sum, sums, partials + block_y() * columns, columns);
}

// ---- partial sums ----

constexpr int groups = 32;  // of partial sums that a block adds up side by side

// Blocks (32 columns, groups).
template <class Gradient>
__global__ void __launch_bounds__(warp_size* groups)
    add_partials_kernel(const float* __restrict__ partials, std::int64_t count, std::int64_t width,
                        ColumnOutputs<Gradient> outputs) {
  __shared__ float sums[groups][warp_size];
  const std::int64_t column = block_x() * warp_size + thread_x();
  float sum = 0;
  if (column < width) {
    SPILLWAY_UNROLL
    for (std::int64_t k = thread_y(); k < count; k += groups) sum += partials[k * width + column];
  }
  sums[thread_y()][thread_x()] = sum;
  __syncthreads();
  if (thread_y() > 0 || column >= width) return;
  SPILLWAY_UNROLL
  for (int group = 1; group < groups; ++group) sum += sums[group][thread_x()];
  Gradient* to = outputs.to[0] + column;
  SPILLWAY_UNROLL
  for (int k = 1; k < ColumnOutputs<Gradient>::most; ++k) {
    const std::int64_t first = k * outputs.columns;
    if (column >= first) to = outputs.to[k] + (column - first);
  }
  *to = from_float<Gradient>(outputs.overwrites ? sum : to_float(*to) + sum);
}

// ---- losses ----

constexpr int loss_threads = 256;

__global__ void __launch_bounds__(loss_threads)
    sum_losses_kernel(const double* token_losses, double* losses, std::int64_t t) {
  __shared__ double sums[loss_threads / warp_size];
  double sum = 0;
  for (std::int64_t token = thread_x(); token < t; token += loss_threads)
    sum = add(sum, token_losses[block_x() * t + token]);
  sum = warp_sum(sum);
  if (thread_x() % warp_size == 0) sums[thread_x() / warp_size] = sum;
  __syncthreads();
  if (thread_x() > 0) return;
  for (int warp = 1; warp < loss_threads / warp_size; ++warp) sum = add(sum, sums[warp]);
  losses[block_x()] = sum;
}

}  // namespace

template <class Gradient>
void add_partials(const float* partials, std::int64_t count, const ColumnOutputs<Gradient>& outputs,
                  cudaStream_t stream) {
  SPILLWAY_ASSERT(outputs.count >= 1 && outputs.count <= outputs.most);
  const std::int64_t width = outputs.count * outputs.columns;
  const Launch shape{dim3(grid_size(divide_up(width, warp_size))), dim3(warp_size, groups)};
  launch("add_partials", add_partials_kernel<Gradient>, shape, stream, partials, count, width,
         outputs);
}

RowChunks row_chunks(std::int64_t rows, std::int64_t columns, int pack) {
  // Many times what any GPU runs at once (142 multiprocessors with 6 blocks each: 852), so that it
  // matters little how full the last round is; and no chunks of a few rows only.
  constexpr std::int64_t most_blocks = 8192, grid = row_warps * in_flight;
  RowChunks cut;
  cut.tiles = divide_up(columns, warp_size * pack);
  const std::int64_t most = std::max<std::int64_t>(1, most_blocks / cut.tiles);
  const std::int64_t wanted = std::clamp<std::int64_t>(rows / grid, 1, most);
  cut.rows = std::max(grid, divide_up(divide_up(rows, wanted), grid) * grid);
  cut.chunks = divide_up(rows, cut.rows);
  return cut;
}

template <class Element, class Gradient>
void column_sums(const Element* x, Gradient* sums, bool overwrites, std::int64_t rows,
                 std::int64_t columns, const Workspace& workspace, cudaStream_t stream) {
  SPILLWAY_ASSERT(columns % 8 == 0 && columns > 0 && on_16_bytes(x));
  const RowChunks cut = row_chunks(rows, columns, pack_size<Element>);
  SPILLWAY_ASSERT(static_cast<std::size_t>(cut.chunks * columns) * sizeof(float) <=
                  workspace.bytes);
  auto* const partials = reinterpret_cast<float*>(workspace.data);
  if (rows > 0) {
    const Launch shape{dim3(grid_size(cut.tiles), static_cast<unsigned>(cut.chunks)),
                       dim3(warp_size, row_warps)};
    launch("column_sums", column_sums_kernel<Element>, shape, stream, x, partials, rows, columns,
           cut.rows);
  }
  add_partials<Gradient>(partials, cut.chunks, {{sums}, 1, columns, overwrites}, stream);
}

void sum_losses(const double* token_losses, double* losses, std::int64_t sequences, std::int64_t t,
                cudaStream_t stream) {
  if (sequences == 0) return;
  launch("sum_losses", sum_losses_kernel, {dim3(grid_size(sequences)), dim3(loss_threads)}, stream,
         token_losses, losses, t);
}

template void add_partials(const float*, std::int64_t, const ColumnOutputs<float>&, cudaStream_t);
template void add_partials(const float*, std::int64_t, const ColumnOutputs<bf16>&, cudaStream_t);

#define SPILLWAY_COLUMN_SUMS(Element, Gradient)                                          \
  template void column_sums(const Element*, Gradient*, bool, std::int64_t, std::int64_t, \
                            const Workspace&, cudaStream_t);
SPILLWAY_COLUMN_SUMS(float, float)
SPILLWAY_COLUMN_SUMS(float, bf16)
SPILLWAY_COLUMN_SUMS(bf16, float)
SPILLWAY_COLUMN_SUMS(bf16, bf16)

}  // namespace spillway::cuda
