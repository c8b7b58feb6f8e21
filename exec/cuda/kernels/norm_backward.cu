// Layer norm, backward: with xhat = (x - mean) rstd and g = dy w,
//
//   dx = rstd (g - mean(g) - xhat mean(g xhat)),   dw = sum of dy xhat,   db = sum of dy
//
// and RMS norm, where xhat = x rstd, and neither mean(g) nor db is there; in one pass: a team of
// threads holds a row, and every thread adds up dw and db of its columns in registers over the rows
// of its team. A block then leaves one sum per column, and add_partials() adds up the blocks. Moves
// the ideal (dy and x read, dx written: 6 bytes of an element in bf16, 8 where it adds), and 16
// bytes per column and block, which stay in the L2 cache.
//
// A block has all the threads that registers let a multiprocessor hold, in as many teams as these
// make, which do not wait for each other: so there are no more blocks, and partial sums, than
// multiprocessors need to be evenly busy. 512 blocks are 4 to 7 rounds of 80 to 142
// multiprocessors, of which at most 11 % is idle (tests/cuda/device/emulated_waves_test.cpp); how
// many there are does not follow from the GPU, nor does what is added up in which order.
//
// The residual's gradient, read and written where it adds, is summed up in passing, too: two more
// sums, and so as many more registers, for which there are fewer threads. Their loads on the way
// (640 threads of a multiprocessor, 60 KB) are still three times what hides the latency of 3.2
// TB/s. Rows of more than 512 packs (4096 columns of bf16) would leave too few threads, and get two
// passes of their own.
#include <algorithm>

#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/kernels/partials.hpp"
#include "exec/cuda/kernels/row_statistics.hpp"

namespace spillway::cuda {

namespace {

// Of a team, and of a block, whose threads hold so many packs of a row each.
// How many sums of a column there are says what is computed.
constexpr int rms_sums = 1;       // dw
constexpr int layer_sums = 2;     // dw, db
constexpr int residual_sums = 4;  // dw, db, the input's gradient before and after

constexpr int widest_team(int held, int sums) {
  return sums != residual_sums ? 384 : held == 1 ? 320 : 256;
}
constexpr int most_threads_of(int held, int sums) {
  if (held == 1) return sums == residual_sums ? 640 : 768;
  return held == 2 ? 512 : 384;
}
constexpr int most_warps = most_threads_of(1, layer_sums) / warp_size;
constexpr int wide_threads = widest_team(0, layer_sums);  // of rows that are not held

template <class Element>
struct NormGradient {
  const Element *output_gradient, *input, *weight;
  Element* input_gradient;
  RowStatistics statistics;
  bool adds;
  std::int64_t rows, columns;
  float* partials;  // (blocks, sums, columns)
};

// What a thread adds up of its columns.
template <class Element, int sums>
struct ThreadSums {
  float of[sums][pack_size<Element>];
};

// Sums over a row of g (0 of an RMS norm) and of g xhat.
struct RowSums {
  float g, g_xhat;
};

// The sums over a team of the threads' own for `count` rows. Successive calls take turns with two
// buffers, so that one barrier is enough.
template <bool centered, int count>
__device__ inline void add_over_team(RowSums (&sums)[count],
                                     RowSums (&of_warps)[most_warps][count]) {
  SPILLWAY_UNROLL
  for (int k = 0; k < count; ++k)
    sums[k] = {centered ? warp_sum(sums[k].g) : 0.0f, warp_sum(sums[k].g_xhat)};
  if (threads_x() == warp_size) return;
  const int warps = threads_x() / warp_size, first = thread_y() * warps;
  if (thread_x() % warp_size == 0) {
    SPILLWAY_UNROLL
    for (int k = 0; k < count; ++k) of_warps[first + thread_x() / warp_size][k] = sums[k];
  }
  warps_barrier(thread_y(), threads_x());
  SPILLWAY_UNROLL
  for (int k = 0; k < count; ++k) sums[k] = of_warps[first][k];
  for (int warp = 1; warp < warps; ++warp) {
    SPILLWAY_UNROLL
    for (int k = 0; k < count; ++k) {
      const RowSums more = of_warps[first + warp][k];
      sums[k] = {centered ? add(sums[k].g, more.g) : 0.0f, add(sums[k].g_xhat, more.g_xhat)};
    }
  }
}

// Adds to `sums` what a pack has of a row's. `mean` is 0 of an RMS norm.
template <class Element, bool centered>
__device__ inline void add_pack(RowSums& sums, const Words& dy_words, const Words& x_words,
                                const Words& w_words, float mean, float rstd) {
  constexpr int size = pack_size<Element>;
  float dy[size], x[size], w[size];
  unpack<Element>(dy_words, dy);
  unpack<Element>(x_words, x);
  unpack<Element>(w_words, w);
  SPILLWAY_UNROLL
  for (int i = 0; i < size; ++i) {
    const float g = dy[i] * w[i];
    if constexpr (centered) sums.g += g;
    sums.g_xhat += g * ((centered ? x[i] - mean : x[i]) * rstd);
  }
}

// The gradient of a pack of the input, and what the pack adds to the sums.
template <class Element, int count>
__device__ inline Words finish_pack(const RowSums& means, const Words& dy_words,
                                    const Words& x_words, const Words& w_words,
                                    const Words& old_words, bool adds, float mean, float rstd,
                                    ThreadSums<Element, count>& sums) {
  constexpr int size = pack_size<Element>;
  constexpr bool centered = count != rms_sums;
  float dy[size], x[size], w[size], dx[size];
  unpack<Element>(dy_words, dy);
  unpack<Element>(x_words, x);
  unpack<Element>(w_words, w);
  SPILLWAY_UNROLL
  for (int i = 0; i < size; ++i) {
    const float xhat = (centered ? x[i] - mean : x[i]) * rstd;
    sums.of[0][i] += dy[i] * xhat;
    if constexpr (centered) {
      sums.of[1][i] += dy[i];
      dx[i] = (dy[i] * w[i] - means.g - xhat * means.g_xhat) * rstd;
    } else {
      dx[i] = (dy[i] * w[i] - xhat * means.g_xhat) * rstd;
    }
  }
  if (count == residual_sums || adds) {
    float old[size];
    unpack<Element>(old_words, old);
    SPILLWAY_UNROLL
    for (int i = 0; i < size; ++i) {
      dx[i] += old[i];
      if constexpr (count == residual_sums) sums.of[2][i] += old[i];
    }
  }
  const Words result = pack<Element>(dx);
  if constexpr (count == residual_sums) {
    unpack<Element>(result, dx);  // as it is stored
    SPILLWAY_UNROLL
    for (int i = 0; i < size; ++i) sums.of[3][i] += dx[i];
  }
  return result;
}

// Blocks (team size, teams). Team k of all of a grid takes rows k, k + all, ..; `at_once` of them
// at a time. A thread has `held` packs of a row.
template <class Element, int held, int at_once, int sum_count>
__global__ void __launch_bounds__(most_threads_of(held, sum_count), 1)
    backward_kernel(NormGradient<Element> norm) {
  constexpr int size = pack_size<Element>;
  constexpr bool centered = sum_count != rms_sums, sums_residual = sum_count == residual_sums;
  // Or it is read again, for want of registers.
  constexpr bool keeps_weight = held < (sums_residual ? 2 : 4);
  __shared__ RowSums of_warps[2][most_warps][at_once];
  const int packs = static_cast<int>(norm.columns / size);
  const float count = static_cast<float>(norm.columns);
  const int rows = static_cast<int>(norm.rows), teams = static_cast<int>(gridDim.x * blockDim.y);
  const int team = static_cast<int>(blockIdx.x * blockDim.y) + thread_y();

  Words w[held] = {};
  ThreadSums<Element, sum_count> column_sums[held] = {};
  SPILLWAY_UNROLL
  for (int k = 0; k < held; ++k) {
    const int at = thread_x() + k * threads_x();
    if (keeps_weight && at < packs) w[k] = load_words(norm.weight + at * size);
  }
  const auto weight = [&](int k) {
    return keeps_weight ? w[k] : load_words(norm.weight + (thread_x() + k * threads_x()) * size);
  };
  int turn = 0;
  for (int first = 0; first < rows; first += at_once * teams, turn ^= 1) {
    Words dy[at_once][held], x[at_once][held], old[at_once][held];
    float mean[at_once] = {}, rstd[at_once] = {};
    bool active[at_once];
    SPILLWAY_UNROLL
    for (int r = 0; r < at_once; ++r) {
      const int row = first + r * teams + team;
      active[r] = row < rows;
      if (!active[r]) continue;
      const std::int64_t at_row = place_of_row(norm.statistics, row);
      if constexpr (centered) mean[r] = norm.statistics.mean[at_row];
      rstd[r] = norm.statistics.rstd[at_row];
      SPILLWAY_UNROLL
      for (int k = 0; k < held; ++k) {
        const int at = thread_x() + k * threads_x();
        if (at >= packs) continue;
        const std::int64_t here = row * norm.columns + at * size;
        dy[r][k] = load_words(norm.output_gradient + here);
        x[r][k] = load_words(norm.input + here);
        if (sums_residual || norm.adds) old[r][k] = load_words(norm.input_gradient + here);
      }
    }
    RowSums sums[at_once] = {};
    SPILLWAY_UNROLL
    for (int r = 0; r < at_once; ++r) {
      SPILLWAY_UNROLL
      for (int k = 0; k < held; ++k) {
        if (active[r] && thread_x() + k * threads_x() < packs)
          add_pack<Element, centered>(sums[r], dy[r][k], x[r][k], weight(k), mean[r], rstd[r]);
      }
    }
    add_over_team<centered>(sums, of_warps[turn]);
    SPILLWAY_UNROLL
    for (int r = 0; r < at_once; ++r) {
      if (!active[r]) continue;
      const std::int64_t row = first + r * teams + team;
      const RowSums means{sums[r].g / count, sums[r].g_xhat / count};
      SPILLWAY_UNROLL
      for (int k = 0; k < held; ++k) {
        const int at = thread_x() + k * threads_x();
        if (at >= packs) continue;
        store_words(norm.input_gradient + row * norm.columns + at * size,
                    finish_pack<Element, sum_count>(means, dy[r][k], x[r][k], weight(k), old[r][k],
                                                    norm.adds, mean[r], rstd[r], column_sums[k]));
      }
    }
  }

  // The block's teams, in order; in dynamic shared memory (sums, columns) where there are several.
  float* const partial = norm.partials + block_x() * sum_count * norm.columns;
  auto* const shared = reinterpret_cast<float*>(dynamic_shared());
  const int last = static_cast<int>(blockDim.y) - 1;
  for (int from = 0; from <= last; ++from) {
    if (thread_y() == from) {
      float* const to = from == last ? partial : shared;
      SPILLWAY_UNROLL
      for (int k = 0; k < held; ++k) {
        const int at = thread_x() + k * threads_x();
        if (at >= packs) continue;
        SPILLWAY_UNROLL
        for (int which = 0; which < sum_count; ++which) {
          SPILLWAY_UNROLL
          for (int first = 0; first < size; first += pack_size<float>) {
            const int column = (which * packs + at) * size + first;
            float sum[pack_size<float>], before[pack_size<float>] = {};
            if (from > 0) unpack<float>(load_words(shared + column), before);
            SPILLWAY_UNROLL
            for (int i = 0; i < pack_size<float>; ++i)
              sum[i] = column_sums[k].of[which][first + i] + before[i];
            store_words(to + column, pack<float>(sum));
          }
        }
      }
    }
    __syncthreads();
  }
}

// Rows too wide for registers: one block has a row, reads it twice, and keeps its sums of columns
// where it leaves them.
template <class Element, int sum_count>
__global__ void __launch_bounds__(wide_threads, 2) wide_kernel(NormGradient<Element> norm) {
  constexpr int size = pack_size<Element>;
  constexpr bool centered = sum_count != rms_sums;
  __shared__ RowSums of_warps[2][most_warps][1];
  const int packs = static_cast<int>(norm.columns / size);
  const float count = static_cast<float>(norm.columns);
  float* const partial = norm.partials + block_x() * sum_count * norm.columns;
  int turn = 0;
  for (std::int64_t row = block_x(); row < norm.rows; row += gridDim.x, turn ^= 1) {
    const std::int64_t at_row = place_of_row(norm.statistics, row), begin = row * norm.columns;
    const float mean = centered ? norm.statistics.mean[at_row] : 0.0f;
    const float rstd = norm.statistics.rstd[at_row];
    RowSums sums[1] = {};
    for (int at = thread_x(); at < packs; at += threads_x()) {
      add_pack<Element, centered>(sums[0], load_words(norm.output_gradient + begin + at * size),
                                  load_words(norm.input + begin + at * size),
                                  load_words(norm.weight + at * size), mean, rstd);
    }
    add_over_team<centered>(sums, of_warps[turn]);
    const RowSums means{sums[0].g / count, sums[0].g_xhat / count};
    for (int at = thread_x(); at < packs; at += threads_x()) {
      float* const to = partial + at * size;
      ThreadSums<Element, sum_count> own = {};
      if (row >= static_cast<std::int64_t>(gridDim.x)) {
        for (int which = 0; which < sum_count; ++which)
          for (int i = 0; i < size; ++i) own.of[which][i] = to[which * norm.columns + i];
      }
      Words old = {};
      if (norm.adds) old = load_words(norm.input_gradient + begin + at * size);
      const Words dx = finish_pack<Element, sum_count>(
          means, load_words(norm.output_gradient + begin + at * size),
          load_words(norm.input + begin + at * size), load_words(norm.weight + at * size), old,
          norm.adds, mean, rstd, own);
      store_words(norm.input_gradient + begin + at * size, dx);
      for (int which = 0; which < sum_count; ++which)
        for (int i = 0; i < size; ++i) to[which * norm.columns + i] = own.of[which][i];
    }
  }
}

// Packs of a row in a thread's registers; 0: too many.
int packs_held(std::int64_t packs, int sums) {
  for (const int held : {1, 2, 4}) {
    if (held == 4 && sums == residual_sums) break;
    if (packs <= held * widest_team(held, sums)) return held;
  }
  return 0;
}

template <int sums, class Element>
void start(const NormGradient<Element>& norm, const RowBlocks& blocks, cudaStream_t stream) {
  const Launch shape{
      dim3(grid_size(blocks.blocks)),
      dim3(static_cast<unsigned>(blocks.team), static_cast<unsigned>(blocks.teams)),
      blocks.teams > 1 ? static_cast<std::size_t>(sums * norm.columns) * sizeof(float) : 0};
  const auto start_kernel = [&](void (*kernel)(NormGradient<Element>)) {
    launch("norm_backward", kernel, shape, stream, norm);
  };
  switch (blocks.held) {
    case 1:
      return start_kernel(backward_kernel<Element, 1, 2, sums>);
    case 2:
      return start_kernel(backward_kernel<Element, 2, 1, sums>);
    default:
      break;
  }
  if constexpr (sums != residual_sums) {
    start_kernel(blocks.held == 4 ? backward_kernel<Element, 4, 1, sums>
                                  : wide_kernel<Element, sums>);
  }
}

}  // namespace

RowBlocks norm_backward_blocks(std::int64_t rows, std::int64_t packs, bool sums_residual) {
  const int sums = sums_residual ? residual_sums : layer_sums;
  RowBlocks blocks;
  blocks.held = packs_held(packs, sums);
  if (blocks.held == 0 && sums_residual) return {};
  const std::int64_t held = std::max(blocks.held, 1);
  blocks.team = std::min<std::int64_t>(divide_up(divide_up(packs, held), warp_size) * warp_size,
                                       widest_team(blocks.held, sums));
  blocks.teams = blocks.held == 0 ? 1 : most_threads_of(blocks.held, sums) / blocks.team;
  // As many rows as a team has on the way at a time, or few blocks would do what many can.
  const std::int64_t rows_of_team = blocks.held == 1 ? 2 : 1;
  // Of rows that are not held, two blocks run side by side.
  const std::int64_t most = blocks.held == 0 ? 1024 : 512;
  blocks.blocks = std::clamp(rows / (rows_of_team * blocks.teams), std::int64_t{1}, most);
  return blocks;
}

template <class Element, class Gradient>
void norm_backward(const Element* output_gradient, const Element* input, const Element* weight,
                   const RowStatistics& statistics, Element* input_gradient, bool adds,
                   const NormSums<Gradient>& sums, std::int64_t rows, std::int64_t columns,
                   const Workspace& workspace, cudaStream_t stream) {
  SPILLWAY_ASSERT(columns % 8 == 0 && columns > 0 && columns < (1 << 30));
  SPILLWAY_ASSERT(!adds || input_gradient != input);
  SPILLWAY_ASSERT((sums.before != nullptr) == (sums.after != nullptr));
  SPILLWAY_ASSERT((sums.weight != nullptr) == (sums.bias != nullptr));
  SPILLWAY_ASSERT(sums.before == nullptr || sums.weight != nullptr);
  SPILLWAY_ASSERT(sums.before == nullptr || adds);
  require_rows(statistics, rows);
  SPILLWAY_ASSERT(rows <= 1 << 30);  // the kernels count in 32 bits
  const std::int64_t packs = columns / pack_size<Element>;
  const bool wants_residual = sums.before != nullptr;
  const bool in_passing = wants_residual && packs_held(packs, residual_sums) != 0;
  if (wants_residual && !in_passing) {
    column_sums<Element>(input_gradient, sums.before, sums.overwrites, rows, columns, workspace,
                         stream);
  }
  const RowBlocks blocks = norm_backward_blocks(rows, packs, in_passing);
  const int outputs = in_passing ? residual_sums : layer_sums;
  SPILLWAY_ASSERT(static_cast<std::size_t>(blocks.blocks * outputs * columns) * sizeof(float) <=
                  workspace.bytes);
  auto* const partials = reinterpret_cast<float*>(workspace.data);
  if (rows > 0) {
    const NormGradient<Element> norm{
        output_gradient, input, weight, input_gradient, statistics, adds, rows, columns, partials};
    in_passing ? start<residual_sums>(norm, blocks, stream)
               : start<layer_sums>(norm, blocks, stream);
  }
  if (sums.weight == nullptr) return;
  add_partials<Gradient>(
      partials, rows > 0 ? blocks.blocks : 0,
      {{sums.weight, sums.bias, sums.before, sums.after}, outputs, columns, sums.overwrites},
      stream);
  if (wants_residual && !in_passing) {
    column_sums<Element>(input_gradient, sums.after, sums.overwrites, rows, columns, workspace,
                         stream);
  }
}

template <class Element, class Gradient>
void rms_norm_backward(const Element* output_gradient, const Element* input, const Element* weight,
                       const RowStatistics& statistics, Element* input_gradient, bool adds,
                       Gradient* weight_gradient, bool overwrites, std::int64_t rows,
                       std::int64_t columns, const Workspace& workspace, cudaStream_t stream) {
  SPILLWAY_ASSERT(columns % 8 == 0 && columns > 0 && columns < (1 << 30));
  SPILLWAY_ASSERT(!adds || input_gradient != input);
  require_rows(statistics, rows);
  SPILLWAY_ASSERT(rows <= 1 << 30);  // the kernels count in 32 bits
  const RowBlocks blocks = norm_backward_blocks(rows, columns / pack_size<Element>, false);
  SPILLWAY_ASSERT(static_cast<std::size_t>(blocks.blocks * columns) * sizeof(float) <=
                  workspace.bytes);
  auto* const partials = reinterpret_cast<float*>(workspace.data);
  if (rows > 0) {
    start<rms_sums, Element>(
        {output_gradient, input, weight, input_gradient, statistics, adds, rows, columns, partials},
        blocks, stream);
  }
  if (weight_gradient == nullptr) return;
  add_partials<Gradient>(partials, rows > 0 ? blocks.blocks : 0,
                         {{weight_gradient}, rms_sums, columns, overwrites}, stream);
}

#define SPILLWAY_NORM_BACKWARD(Element, Gradient)                                              \
  template void rms_norm_backward(const Element*, const Element*, const Element*,              \
                                  const RowStatistics&, Element*, bool, Gradient*, bool,       \
                                  std::int64_t, std::int64_t, const Workspace&, cudaStream_t); \
  template void norm_backward(const Element*, const Element*, const Element*,                  \
                              const RowStatistics&, Element*, bool, const NormSums<Gradient>&, \
                              std::int64_t, std::int64_t, const Workspace&, cudaStream_t);
SPILLWAY_NORM_BACKWARD(float, float)
SPILLWAY_NORM_BACKWARD(float, bf16)
SPILLWAY_NORM_BACKWARD(bf16, float)
SPILLWAY_NORM_BACKWARD(bf16, bf16)

}  // namespace spillway::cuda
