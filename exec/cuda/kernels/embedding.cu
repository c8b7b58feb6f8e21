// The embedding's tables, forward and backward.
//
// Forward moves per element (bf16) 2 bytes written and 2 read of the token's row; the position
// table comes from the L2 cache after the first sequence.
//
// Backward reads the gradient twice (4 bytes of an element in bf16), once in the order of positions
// and once in that of tokens, and each row of a table that occurs once to read and once to write.
// The rows of a token (a run) are few or many: in a byte-level model, one token is 10 % of all.
//   up to 32 rows    a warp per 32 packs of columns, row after row
//   up to 512 rows   a block per 32 packs: each of 8 warps takes every 8th row, 8 of them at a time
//   more             a block of 512 threads per 4 packs (64 bytes): each of 128 groups takes every
//                    128th row; so the token with 6,554 of 65,536 rows of 768 columns is shared by
//                    24 blocks that read 420 KB each, 32 KB of it at a time: 13 round trips to
//                    memory, about 12 us where reading the whole gradient takes 24
// and the groups are added up in a fixed order.
#include <algorithm>

#include "exec/cuda/kernels/column_tiles.hpp"
#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"

namespace spillway::cuda {

namespace {

constexpr int threads = 256;
constexpr int warps = threads / warp_size;

constexpr int packs_of_lane = 4;
constexpr int slice_packs = packs_of_lane * warp_size;

// A warp per row and slice of 128 packs.
template <class Element, bool has_positions>
__global__ void __launch_bounds__(threads)
    forward_kernel(const Element* __restrict__ token_table,
                   const Element* __restrict__ position_table,
                   const std::int32_t* __restrict__ tokens, const std::int32_t* __restrict__ starts,
                   Element* __restrict__ output, std::int64_t rows, std::int64_t t,
                   std::int64_t columns, int slices) {
  constexpr int size = pack_size<Element>;
  const auto item = static_cast<std::uint32_t>(block_x() * warps + thread_x() / warp_size);
  const std::int64_t row = item / static_cast<std::uint32_t>(slices);
  if (row >= rows) return;
  const int slice = static_cast<int>(item % static_cast<std::uint32_t>(slices));
  const int first = slice * slice_packs + thread_x() % warp_size;
  const int packs = static_cast<int>(columns / size);
  auto position = static_cast<std::uint32_t>(row) % static_cast<std::uint32_t>(t);
  if (has_positions && starts != nullptr) position -= static_cast<std::uint32_t>(starts[row]);
  const Element* const of_token = token_table + tokens[row] * columns;
  const Element* const of_position = position_table + position * columns;
  Words a[packs_of_lane], b[packs_of_lane];
  SPILLWAY_UNROLL
  for (int k = 0; k < packs_of_lane; ++k) {
    const int at = first + k * warp_size;
    if (at >= packs) continue;
    a[k] = load_words(of_token + at * size);
    if constexpr (has_positions) b[k] = load_words(of_position + at * size);
  }
  SPILLWAY_UNROLL
  for (int k = 0; k < packs_of_lane; ++k) {
    const int at = first + k * warp_size;
    if (at >= packs) continue;
    if constexpr (has_positions) {
      float x[size], y[size];
      unpack<Element>(a[k], x);
      unpack<Element>(b[k], y);
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i) x[i] = add(x[i], y[i]);
      a[k] = pack<Element>(x);
    }
    store_words(output + row * columns + at * size, a[k]);
  }
}

// to[i] += sum[i], once rounded to the format.
template <class Gradient, int size>
__device__ inline void add_to(Gradient* to, const float (&sum)[size]) {
  constexpr int at_once = pack_size<Gradient> < size ? pack_size<Gradient> : size;
  if constexpr (at_once == pack_size<Gradient>) {
    SPILLWAY_UNROLL
    for (int first = 0; first < size; first += at_once) {
      float x[at_once];
      unpack<Gradient>(load_words(to + first), x);
      SPILLWAY_UNROLL
      for (int i = 0; i < at_once; ++i) x[i] = add(x[i], sum[first + i]);
      store_words(to + first, pack<Gradient>(x));
    }
  } else {  // a pack of floats to half a pack of bf16
    SPILLWAY_UNROLL
    for (int i = 0; i < size; ++i) to[i] = from_float<Gradient>(add(to_float(to[i]), sum[i]));
  }
}

template <class Element>
__device__ inline void add_words(float (&sum)[pack_size<Element>], const Words& words) {
  float x[pack_size<Element>];
  unpack<Element>(words, x);
  SPILLWAY_UNROLL
  for (int i = 0; i < pack_size<Element>; ++i) sum[i] = add(sum[i], x[i]);
}

// A block of row_warps warps per 32 packs of the position table: each takes every row_warps-th
// sequence, and they are added up in order.
template <class Element, class Gradient>
__global__ void __launch_bounds__(warp_size* row_warps)
    position_kernel(const Element* __restrict__ output_gradient, Gradient* position_gradient,
                    std::int64_t sequences, std::int64_t elements) {
  constexpr int size = pack_size<Element>, in_flight = 4;
  __shared__ __align__(16) TileSums<Element> sums;
  const std::int64_t at = (block_x() * warp_size + thread_x()) * size;
  float sum[size] = {};
  for (std::int64_t first = thread_y(); first < sequences && at < elements;
       first += in_flight * row_warps) {
    Words words[in_flight];
    SPILLWAY_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      if (first + k * row_warps < sequences)
        words[k] = load_words(output_gradient + (first + k * row_warps) * elements + at);
    }
    SPILLWAY_UNROLL
    for (int k = 0; k < in_flight; ++k)
      if (first + k * row_warps < sequences) add_words<Element>(sum, words[k]);
  }
  add_up_tile<Element>(sum, sums, elements, [&](std::int64_t element, float total) {
    Gradient* const to = position_gradient + element;
    *to = from_float<Gradient>(add(to_float(*to), total));
  });
}

template <class Element, class Gradient>
struct TokenRuns {
  const std::int32_t* tokens;
  TokenOrder order;
  const Element* output_gradient;
  Gradient* token_gradient;
  std::int64_t columns;
};

constexpr int short_run = warp_size;  // rows, at most

// A warp per short run and slice of 32 packs.
template <class Element, class Gradient>
__global__ void __launch_bounds__(threads, 3)
    short_runs_kernel(TokenRuns<Element, Gradient> all, int slices) {
  constexpr int size = pack_size<Element>, in_flight = 8;
  const int lane = thread_x() % warp_size;
  const std::int64_t items = static_cast<std::int64_t>(*all.order.runs) * slices;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * warps;
  for (std::int64_t item = block_x() * warps + thread_x() / warp_size; item < items; item += step) {
    const auto number = static_cast<std::uint32_t>(item);
    const std::uint32_t run = number / static_cast<std::uint32_t>(slices);
    const std::uint32_t slice = number - run * static_cast<std::uint32_t>(slices);
    const int begin = all.order.begins[run], count = all.order.begins[run + 1] - begin;
    if (count > short_run) continue;  // the whole warp
    const int row = lane < count ? all.order.rows[begin + lane] : 0;
    const int token = all.tokens[__shfl_sync(full_warp, row, 0)];
    const std::int64_t column = (static_cast<std::int64_t>(slice) * warp_size + lane) * size;
    const bool active = column < all.columns;
    float sum[size] = {};
    for (int first = 0; first < count; first += in_flight) {
      Words words[in_flight];
      SPILLWAY_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        const std::int64_t from = __shfl_sync(full_warp, row, (first + k) % warp_size);
        if (active && first + k < count)
          words[k] = load_words(all.output_gradient + from * all.columns + column);
      }
      SPILLWAY_UNROLL
      for (int k = 0; k < in_flight; ++k)
        if (active && first + k < count) add_words<Element>(sum, words[k]);
    }
    if (active) add_to(all.token_gradient + token * all.columns + column, sum);
  }
}

// How a block goes about runs of more than `more_than` rows and at most `most`: `groups` of threads
// take a row each, `packs` wide, and of every thread `in_flight` rows are on their way.
struct Middle {
  static constexpr int more_than = short_run, most = 512, packs = 32, groups = 8, in_flight = 8;
  static constexpr std::int64_t most_blocks = 8192;
};
struct Long {
  static constexpr int more_than = Middle::most, most = 0x7fffffff, packs = 4, groups = 128,
                       in_flight = 4;
  static constexpr std::int64_t most_blocks = 4096;
};
template <class Class>
constexpr int threads_of = Class::packs* Class::groups;
template <class Class, class Element>
constexpr int width_of = Class::packs* pack_size<Element>;

// One run's columns of one slice, by a block.
template <class Class, class Element, class Gradient>
__device__ inline void add_run(const TokenRuns<Element, Gradient>& all, int begin, int end,
                               float (&sums)[Class::groups][width_of<Class, Element>]) {
  constexpr int size = pack_size<Element>, width = width_of<Class, Element>;
  constexpr int groups = Class::groups, in_flight = Class::in_flight;
  const int group = thread_x() / Class::packs, part = thread_x() % Class::packs;
  const std::int64_t first_column = block_x() * width, column = first_column + part * size;
  float sum[size] = {};
  if (column < all.columns) {
    for (int first = begin + group; first < end; first += groups * in_flight) {
      Words words[in_flight];
      SPILLWAY_UNROLL
      for (int k = 0; k < in_flight; ++k) {
        const int at = first + k * groups;
        if (at < end) {
          const std::int64_t row = all.order.rows[at];
          words[k] = load_words(all.output_gradient + row * all.columns + column);
        }
      }
      SPILLWAY_UNROLL
      for (int k = 0; k < in_flight; ++k)
        if (first + k * groups < end) add_words<Element>(sum, words[k]);
    }
  }
  SPILLWAY_UNROLL
  for (int i = 0; i < size; ++i) sums[group][part * size + i] = sum[i];
  __syncthreads();
  // Of 128 groups: 0 + 64, 1 + 65, ..; then + 32, .. + 1.
  for (int half = groups / 2; half > 0; half /= 2) {
    for (int at = thread_x(); at < half * width; at += threads_of<Class>) {
      const int to = at / width, of = at % width;
      sums[to][of] = add(sums[to][of], sums[to + half][of]);
    }
    __syncthreads();
  }
  const std::int64_t token = all.tokens[all.order.rows[begin]];
  for (int at = thread_x(); at < width && first_column + at < all.columns;
       at += threads_of<Class>) {
    Gradient* const to = all.token_gradient + token * all.columns + first_column + at;
    *to = from_float<Gradient>(add(to_float(*to), sums[0][at]));
  }
  __syncthreads();
}

// Blocks (slice of columns, y): those of runs y, y + gridDim.y, .. that are of the class; the
// threads look for them, one run each.
template <class Class, class Element, class Gradient>
__global__ void __launch_bounds__(threads_of<Class>) runs_kernel(TokenRuns<Element, Gradient> all) {
  constexpr int count = threads_of<Class>;
  __shared__ __align__(16) float sums[Class::groups][width_of<Class, Element>];
  __shared__ int begins[count], ends[count], found[count / warp_size];
  const std::int64_t runs = *all.order.runs, step = static_cast<std::int64_t>(gridDim.y);
  for (std::int64_t first = block_y(); first < runs; first += step * count) {
    const std::int64_t run = first + thread_x() * step;
    const int begin = run < runs ? all.order.begins[run] : 0;
    const int end = run < runs ? all.order.begins[run + 1] : 0;
    const bool mine = end - begin > Class::more_than && end - begin <= Class::most;
    begins[thread_x()] = begin;
    ends[thread_x()] = mine ? end : begin;
    int of_warp = mine ? 1 : 0;
    for (int half = warp_size / 2; half > 0; half /= 2)
      of_warp += __shfl_xor_sync(full_warp, of_warp, half);
    if (thread_x() % warp_size == 0) found[thread_x() / warp_size] = of_warp;
    __syncthreads();
    for (int k = 0; k < count; ++k) {
      if (k % warp_size == 0 && found[k / warp_size] == 0) {
        k += warp_size - 1;
        continue;
      }
      if (begins[k] < ends[k]) add_run<Class>(all, begins[k], ends[k], sums);
    }
    __syncthreads();
  }
}

template <class Class, class Element, class Gradient>
void start_runs(const TokenRuns<Element, Gradient>& all, std::int64_t rows, cudaStream_t stream) {
  const std::int64_t most_runs = rows / (Class::more_than + 1);  // of this class
  if (most_runs == 0) return;
  const std::int64_t slices = divide_up(all.columns, width_of<Class, Element>);
  const std::int64_t blocks =
      std::min(most_runs, std::max<std::int64_t>(1, Class::most_blocks / slices));
  launch("embed_backward", runs_kernel<Class, Element, Gradient>,
         {dim3(grid_size(slices), grid_size(blocks)), dim3(threads_of<Class>)}, stream, all);
}

}  // namespace

template <class Element>
void embed_forward(const Element* token_table, const Element* position_table,
                   const std::int32_t* tokens, const std::int32_t* starts, Element* output,
                   std::int64_t rows, std::int64_t t, std::int64_t columns, cudaStream_t stream) {
  SPILLWAY_ASSERT(columns % 8 == 0 && columns < (1 << 30) && rows < 0x7fffffff && t > 0);
  if (rows == 0) return;
  const std::int64_t slices = divide_up(columns / pack_size<Element>, slice_packs);
  SPILLWAY_ASSERT(rows * slices < 0x7fffffff);
  const Launch shape{dim3(grid_size(divide_up(rows * slices, warps))), dim3(threads)};
  launch("embed_forward",
         position_table != nullptr ? forward_kernel<Element, true> : forward_kernel<Element, false>,
         shape, stream, token_table, position_table, tokens, starts, output, rows, t, columns,
         static_cast<int>(slices));
}

template <class Element, class Gradient>
void embed_backward(const std::int32_t* tokens, const TokenOrder& order,
                    const Element* output_gradient, Gradient* token_gradient,
                    Gradient* position_gradient, std::int64_t sequences, std::int64_t t,
                    std::int64_t columns, cudaStream_t stream) {
  const std::int64_t rows = sequences * t;
  SPILLWAY_ASSERT(columns % 8 == 0 && columns < (1 << 30));
  if (rows == 0) return;
  const std::int64_t packs = columns / pack_size<Element>;
  if (position_gradient != nullptr) {
    launch("embed_backward", position_kernel<Element, Gradient>,
           {dim3(grid_size(divide_up(t * packs, warp_size))), dim3(warp_size, row_warps)}, stream,
           output_gradient, position_gradient, sequences, t * columns);
  }

  // How many runs there are the device alone knows: grids of many times what any GPU runs at once
  // go through them. What is added up in which order does not depend on the grid.
  const TokenRuns<Element, Gradient> all{tokens, order, output_gradient, token_gradient, columns};
  const std::int64_t slices = divide_up(packs, warp_size);
  SPILLWAY_ASSERT(rows * slices < 0x7fffffff);
  constexpr std::int64_t most_blocks = 8192;
  launch("embed_backward", short_runs_kernel<Element, Gradient>,
         {dim3(grid_size(std::min(divide_up(rows * slices, warps), most_blocks))), dim3(threads)},
         stream, all, static_cast<int>(slices));
  start_runs<Middle>(all, rows, stream);
  start_runs<Long>(all, rows, stream);
}

template void embed_forward(const float*, const float*, const std::int32_t*, const std::int32_t*,
                            float*, std::int64_t, std::int64_t, std::int64_t, cudaStream_t);
template void embed_forward(const bf16*, const bf16*, const std::int32_t*, const std::int32_t*,
                            bf16*, std::int64_t, std::int64_t, std::int64_t, cudaStream_t);

#define SPILLWAY_EMBED_BACKWARD(Element, Gradient)                                                \
  template void embed_backward(const std::int32_t*, const TokenOrder&, const Element*, Gradient*, \
                               Gradient*, std::int64_t, std::int64_t, std::int64_t, cudaStream_t);
SPILLWAY_EMBED_BACKWARD(float, float)
SPILLWAY_EMBED_BACKWARD(float, bf16)
SPILLWAY_EMBED_BACKWARD(bf16, float)
SPILLWAY_EMBED_BACKWARD(bf16, bf16)

}  // namespace spillway::cuda
