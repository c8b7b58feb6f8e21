// Sums over rows, of partial sums, and of losses.
//
// column_sums reads x once (2 bytes of an element in bf16) and leaves 4 bytes per column and chunk
// of rows, 176 chunks of 768 columns at the most: 0.3 % of the traffic for 65,536 rows.
#include <algorithm>

#include "exec/cuda/device_math.hpp"
#include "exec/cuda/kernels.hpp"
#include "exec/cuda/partials.hpp"

namespace spillway::cuda {

namespace {

// ---- column sums ----

constexpr int row_warps = 8;  // rows that a block reads side by side
constexpr int in_flight = 4;  // loads of a thread

// Blocks (32, row_warps) at (tile of 32 packs, chunk of rows): partials (chunks, columns).
template <class Element>
__global__ void __launch_bounds__(warp_size* row_warps)
    column_sums_kernel(const Element* __restrict__ x, float* __restrict__ partials,
                       std::int64_t rows, std::int64_t columns, std::int64_t chunk_rows) {
  constexpr int size = pack_size<Element>, tile = warp_size * size;
  __shared__ __align__(16) float sums[row_warps][tile];
  const std::int64_t column = block_x() * tile + thread_x() * size;
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
  store_words(&sums[thread_y()][thread_x() * size], pack<float>({sum[0], sum[1], sum[2], sum[3]}));
  if constexpr (size == 8) {
    store_words(&sums[thread_y()][thread_x() * size + 4],
                pack<float>({sum[4], sum[5], sum[6], sum[7]}));
  }
  __syncthreads();
  for (int at = thread_y() * warp_size + thread_x(); at < tile; at += warp_size * row_warps) {
    const std::int64_t to = block_x() * tile + at;
    if (to >= columns) continue;
    float total = sums[0][at];
    SPILLWAY_UNROLL
    for (int warp = 1; warp < row_warps; ++warp) total += sums[warp][at];
    partials[block_y() * columns + to] = total;
  }
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
  Gradient* const to = column < outputs.columns ? outputs.first + column
                                                : outputs.second + (column - outputs.columns);
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
  const std::int64_t width = outputs.second != nullptr ? 2 * outputs.columns : outputs.columns;
  const Launch shape{dim3(grid_size(divide_up(width, warp_size))), dim3(warp_size, groups)};
  launch("add_partials", add_partials_kernel<Gradient>, shape, stream, partials, count, width,
         outputs);
}

std::int64_t column_sum_chunks(std::int64_t rows, std::int64_t tiles) {
  constexpr std::int64_t at_once = 132 * 4;  // four blocks on each of 132 multiprocessors
  const std::int64_t most = std::max<std::int64_t>(1, at_once / tiles);
  return std::clamp(rows / (row_warps * in_flight), std::int64_t{1}, most);
}

template <class Element, class Gradient>
void column_sums(const Element* x, Gradient* sums, bool overwrites, std::int64_t rows,
                 std::int64_t columns, const Workspace& workspace, cudaStream_t stream) {
  SPILLWAY_ASSERT(columns % 8 == 0 && columns > 0 && on_16_bytes(x));
  const std::int64_t tiles = divide_up(columns, warp_size * pack_size<Element>);
  const std::int64_t chunk_rows =
      divide_up(std::max<std::int64_t>(rows, 1), column_sum_chunks(rows, tiles));
  const std::int64_t chunks = divide_up(rows, chunk_rows);  // none of them is empty
  SPILLWAY_ASSERT(static_cast<std::size_t>(chunks * columns) * sizeof(float) <= workspace.bytes);
  auto* const partials = reinterpret_cast<float*>(workspace.data);
  if (rows > 0) {
    const Launch shape{dim3(grid_size(tiles), static_cast<unsigned>(chunks)),
                       dim3(warp_size, row_warps)};
    launch("column_sums", column_sums_kernel<Element>, shape, stream, x, partials, rows, columns,
           chunk_rows);
  }
  add_partials<Gradient>(partials, chunks, {sums, nullptr, columns, overwrites}, stream);
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
