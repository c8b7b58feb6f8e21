// Rotary embedding of the heads of q and k, alone or after an RMS norm of each head (QK norm).
//
// A thread has four elements of the first half of a head and the four of its second half that turn
// with them. Turning alone moves the ideal (one read and one write of an element, 4 bytes in bf16;
// cosines and sines, 4 bytes each for a pair of elements, are shared by all heads and sequences and
// come from the caches). With a norm, 16 lanes have a head, so that forward reads it once and
// backward reads it and its gradient once (6 bytes with what is written).
//
// The gradient of a head's weight is summed over rows and heads: a team of 16 lanes takes every
// n-th (row, head), n teams there are; the teams of a block are added up in order, and
// add_partials() adds up the blocks. How many there are depends on shapes only.
#include <algorithm>

#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/kernels/partials.hpp"
#include "exec/cuda/kernels/row_statistics.hpp"

namespace spillway::cuda {

namespace {

constexpr int quad = 4;
constexpr int threads = 256;
constexpr int lanes = 16, teams = threads / lanes;  // of a head; of a block
constexpr std::int64_t widest_head = 2 * quad * lanes;

// ---- four elements ----

__device__ inline void load_quad(const float* from, float (&x)[quad]) {
  unpack<float>(load_words(from), x);
}
__device__ inline void store_quad(float* to, const float (&x)[quad]) {
  store_words(to, pack<float>(x));
}
struct alignas(8) TwoWords {
  std::uint32_t word[2];
};
__device__ inline void load_quad(const bf16* from, float (&x)[quad]) {
  TwoWords words;
#ifdef __CUDACC__
  words = *reinterpret_cast<const TwoWords*>(from);
#else
  std::memcpy(&words, from, sizeof words);
#endif
  SPILLWAY_UNROLL
  for (int i = 0; i < 2; ++i) {
    x[2 * i] = __uint_as_float(words.word[i] << 16);
    x[2 * i + 1] = __uint_as_float(words.word[i] & 0xffff0000u);
  }
}
__device__ inline void store_quad(bf16* to, const float (&x)[quad]) {
  const TwoWords words{{two_bf16(x[0], x[1]), two_bf16(x[2], x[3])}};
#ifdef __CUDACC__
  *reinterpret_cast<TwoWords*>(to) = words;
#else
  std::memcpy(to, &words, sizeof words);
#endif
}

// A thread's share of a head: elements of the first half, and those of the second that turn with
// them.
struct Pairs {
  float first[quad], second[quad];
};
template <class Element>
__device__ inline Pairs load_pairs(const Element* from, int half) {
  Pairs pairs;
  load_quad(from, pairs.first);
  load_quad(from + half, pairs.second);
  return pairs;
}
template <class Element>
__device__ inline void store_pairs(Element* to, int half, const Pairs& pairs) {
  store_quad(to, pairs.first);
  store_quad(to + half, pairs.second);
}

// ---- turning ----

struct Rotary {
  const float *cosines, *sines;
  std::uint32_t tokens, heads, quads;  // heads of q and of k; quads: of half a head
  std::int64_t stride;
  const std::int32_t* starts;  // of documents, or null
  float direction;             // 1: forward, -1: back
};

// Of a token of a row in the tables.
__device__ inline std::uint32_t position_of(const Rotary& rotary, std::uint32_t row,
                                            std::uint32_t token) {
  return rotary.starts == nullptr ? token : token - static_cast<std::uint32_t>(rotary.starts[row]);
}

// `place`: of the token and the pairs in the tables. Every operation is rounded on its own, so that
// what is turned has the same bits in every kernel.
__device__ inline void turn_pairs(Pairs& pairs, const Rotary& rotary, std::int64_t place) {
  float cosine[quad], sine[quad];
  load_quad(rotary.cosines + place, cosine);
  load_quad(rotary.sines + place, sine);
  SPILLWAY_UNROLL
  for (int i = 0; i < quad; ++i) {
    const float a = pairs.first[i], b = pairs.second[i], s = multiply(sine[i], rotary.direction);
    pairs.first[i] = subtract(multiply(a, cosine[i]), multiply(b, s));
    pairs.second[i] = add(multiply(b, cosine[i]), multiply(a, s));
  }
}

template <class Element>
__global__ void __launch_bounds__(threads)
    rotate_kernel(Element* x, Rotary rotary, std::uint32_t items) {
  const auto item = static_cast<std::uint32_t>(block_x() * threads + thread_x());
  if (item >= items) return;
  const std::uint32_t part = item % rotary.quads, head_of_row = item / rotary.quads;
  const std::uint32_t head = head_of_row % rotary.heads, row = head_of_row / rotary.heads;
  const int half = static_cast<int>(rotary.quads) * quad;
  Element* const at = x + row * rotary.stride + (head * rotary.quads * 2 + part) * quad;
  Pairs pairs = load_pairs(at, half);
  const std::uint32_t position = position_of(rotary, row, row % rotary.tokens);
  turn_pairs(pairs, rotary, static_cast<std::int64_t>(position) * half + part * quad);
  store_pairs(at, half, pairs);
}

// ---- turning what is normed ----

template <class Element>
struct HeadNorms {
  Rotary rotary;
  std::uint32_t q_heads;
  const Element *x, *q_weight, *k_weight;
  Element* output;  // of forward: (rows, heads x head size); of backward: the gradient, as x
  float* rstd;
  std::int64_t statistics_stride;
  float epsilon;
  NormParts parts;
  std::uint32_t rows, items;
  float* partials;  // of backward: (blocks, 2, head size)
};

// The sum over the lanes of a team, with the same bits in all of them.
__device__ inline float team_sum(float value) {
  SPILLWAY_UNROLL
  for (int step = lanes / 2; step > 0; step /= 2)
    value = add(value, __shfl_xor_sync(full_warp, value, step));
  return value;
}

// Where the numbers of a head of a row lie, for a lane of its team.
struct HeadOfRow {
  std::uint32_t row, head, token;
  std::int64_t x, table, statistics;
};
template <class Element>
__device__ inline HeadOfRow head_of_row(const HeadNorms<Element>& norms, std::uint32_t row,
                                        std::uint32_t head, int lane) {
  HeadOfRow at;
  at.row = row;
  at.head = head;
  const std::uint32_t sequence = row / norms.rotary.tokens;
  at.token = row - sequence * norms.rotary.tokens;
  const int half = static_cast<int>(norms.rotary.quads) * quad;
  at.x = row * norms.rotary.stride + head * 2 * half + lane * quad;
  at.table =
      static_cast<std::int64_t>(position_of(norms.rotary, row, at.token)) * half + lane * quad;
  at.statistics = sequence * norms.statistics_stride +
                  static_cast<std::int64_t>(head) * norms.rotary.tokens + at.token;
  return at;
}

// A team per head of a row.
template <class Element>
__global__ void __launch_bounds__(threads) head_norm_forward_kernel(HeadNorms<Element> norms) {
  const int lane = thread_x() % lanes, half = static_cast<int>(norms.rotary.quads) * quad;
  const auto item = static_cast<std::uint32_t>(block_x() * teams + thread_x() / lanes);
  // Lanes without a part of a head meet the others at the sums.
  const bool active = item < norms.items, works = active && lane * quad < half;
  const std::uint32_t row = active ? item / norms.rotary.heads : 0;
  const HeadOfRow at =
      head_of_row(norms, row, active ? item - row * norms.rotary.heads : 0, works ? lane : 0);
  Pairs pairs = {};
  if (works) pairs = load_pairs(norms.x + at.x, half);
  float rstd;
  if (norms.parts == NormParts::output) {
    rstd = norms.rstd[at.statistics];
  } else {
    float squares = 0;
    SPILLWAY_UNROLL
    for (int i = 0; i < quad; ++i) {
      squares = multiply_add(pairs.first[i], pairs.first[i], squares);
      squares = multiply_add(pairs.second[i], pairs.second[i], squares);
    }
    squares = team_sum(squares);
    rstd = divide(1.0f,
                  square_root(add(divide(squares, static_cast<float>(2 * half)), norms.epsilon)));
    if (active && lane == 0) norms.rstd[at.statistics] = rstd;
  }
  if (!works || norms.parts == NormParts::statistics) return;
  const Pairs weight =
      load_pairs((at.head < norms.q_heads ? norms.q_weight : norms.k_weight) + lane * quad, half);
  SPILLWAY_UNROLL
  for (int i = 0; i < quad; ++i) {
    pairs.first[i] = multiply(multiply(pairs.first[i], rstd), weight.first[i]);
    pairs.second[i] = multiply(multiply(pairs.second[i], rstd), weight.second[i]);
  }
  turn_pairs(pairs, norms.rotary, at.table);
  store_pairs(norms.output + static_cast<std::int64_t>(item) * 2 * half + lane * quad, half, pairs);
}

// The gradient of a head of a row, and what it adds to the weight's: with xhat = x rstd, g = dy w
// and dy turned back,
//   dx = rstd (g - xhat mean(g xhat)),   dw = sum of dy xhat.
template <class Element>
__device__ inline void head_backward(const HeadNorms<Element>& norms, const HeadOfRow& at,
                                     bool works, const Pairs& weight, Pairs& weight_sums) {
  const int half = static_cast<int>(norms.rotary.quads) * quad;
  Pairs x = {}, dy = {};
  float rstd = 0;
  if (works) {
    x = load_pairs(norms.x + at.x, half);
    dy = load_pairs(norms.output + at.x, half);
    rstd = norms.rstd[at.statistics];
    turn_pairs(dy, norms.rotary, at.table);
  }
  float sum = 0;
  SPILLWAY_UNROLL
  for (int i = 0; i < quad; ++i) {
    x.first[i] *= rstd;
    x.second[i] *= rstd;
    weight_sums.first[i] += dy.first[i] * x.first[i];
    weight_sums.second[i] += dy.second[i] * x.second[i];
    dy.first[i] *= weight.first[i];
    dy.second[i] *= weight.second[i];
    sum += dy.first[i] * x.first[i];
    sum += dy.second[i] * x.second[i];
  }
  const float mean = team_sum(sum) / static_cast<float>(2 * half);
  if (!works) return;
  SPILLWAY_UNROLL
  for (int i = 0; i < quad; ++i) {
    dy.first[i] = (dy.first[i] - x.first[i] * mean) * rstd;
    dy.second[i] = (dy.second[i] - x.second[i] * mean) * rstd;
  }
  store_pairs(norms.output + at.x, half, dy);
}

// Teams take (row, head) of q, and then of k.
template <class Element>
__global__ void __launch_bounds__(threads) head_norm_backward_kernel(HeadNorms<Element> norms) {
  __shared__ float sums[teams][widest_head];
  const int lane = thread_x() % lanes, team = thread_x() / lanes;
  const int half = static_cast<int>(norms.rotary.quads) * quad, width = 2 * half;
  const bool has_part = lane * quad < half;
  const std::uint32_t step = gridDim.x * teams;
  for (int which = 0; which < 2; ++which) {
    const std::uint32_t first_head = which == 0 ? 0 : norms.q_heads;
    const std::uint32_t heads = which == 0 ? norms.q_heads : norms.rotary.heads - norms.q_heads;
    const std::uint32_t items = norms.rows * heads;
    Pairs weight = {}, weight_sums = {};
    if (has_part)
      weight = load_pairs((which == 0 ? norms.q_weight : norms.k_weight) + lane * quad, half);
    // As many rounds for all teams of a warp, which meet at the sums.
    for (std::uint32_t base = static_cast<std::uint32_t>(block_x()) * teams; base < items;
         base += step) {
      const std::uint32_t item = base + team;
      const bool works = has_part && item < items;
      const std::uint32_t row = works ? item / heads : 0;
      const HeadOfRow at =
          head_of_row(norms, row, works ? first_head + (item - row * heads) : 0, works ? lane : 0);
      head_backward(norms, at, works, weight, weight_sums);
    }
    if (has_part) {
      SPILLWAY_UNROLL
      for (int i = 0; i < quad; ++i) {
        sums[team][lane * quad + i] = weight_sums.first[i];
        sums[team][half + lane * quad + i] = weight_sums.second[i];
      }
    }
    __syncthreads();
    for (int column = thread_x(); column < width; column += threads) {
      float total = sums[0][column];
      for (int other = 1; other < teams; ++other) total += sums[other][column];
      norms.partials[(block_x() * 2 + which) * width + column] = total;
    }
    __syncthreads();
  }
}

Rotary rotary_of(const RotaryShape& shape, std::int64_t stride, Turn turn) {
  SPILLWAY_ASSERT(shape.head_size > 0 && shape.head_size % 8 == 0 && stride % 8 == 0);
  SPILLWAY_ASSERT(shape.tokens > 0 && stride >= shape.columns());
  SPILLWAY_ASSERT(shape.rows() * shape.columns() / (2 * quad) < 0x7fffffff);  // divided in 32 bits
  Rotary rotary{};
  rotary.cosines = shape.cosines;
  rotary.sines = shape.sines;
  rotary.starts = shape.starts;
  rotary.tokens = static_cast<std::uint32_t>(shape.tokens);
  rotary.heads = static_cast<std::uint32_t>(shape.q_heads + shape.k_heads);
  rotary.quads = static_cast<std::uint32_t>(shape.head_size / (2 * quad));
  rotary.stride = stride;
  rotary.direction = turn == Turn::forward ? 1.0f : -1.0f;
  return rotary;
}

template <class Element>
HeadNorms<Element> norms_of(const RotaryShape& shape, const HeadNorm<Element>& norm,
                            const Element* x, std::int64_t stride, Turn turn) {
  SPILLWAY_ASSERT(shape.head_size <= widest_head && norm.statistics.tokens == shape.tokens);
  HeadNorms<Element> norms{};
  norms.rotary = rotary_of(shape, stride, turn);
  norms.q_heads = static_cast<std::uint32_t>(shape.q_heads);
  norms.x = x;
  norms.q_weight = norm.q_weight;
  norms.k_weight = norm.k_weight;
  norms.rstd = norm.statistics.rstd;
  norms.statistics_stride = norm.statistics.stride;
  norms.epsilon = norm.epsilon;
  norms.rows = static_cast<std::uint32_t>(shape.rows());
  norms.items = norms.rows * norms.rotary.heads;
  return norms;
}

// Of a block's teams each has some 8 heads or more; 512 blocks are 4 rounds of any GPU's
// multiprocessors.
std::int64_t backward_blocks(const RotaryShape& shape) {
  constexpr std::int64_t most = 512, heads_of_team = 8;
  return std::clamp<std::int64_t>(
      shape.rows() * std::max(shape.q_heads, shape.k_heads) / (teams * heads_of_team), 1, most);
}

}  // namespace

template <class Element>
void rotate_heads(const RotaryShape& shape, Element* x, std::int64_t stride, Turn turn,
                  cudaStream_t stream) {
  const Rotary rotary = rotary_of(shape, stride, turn);
  const std::int64_t items = shape.rows() * rotary.heads * rotary.quads;
  if (items == 0) return;
  launch("rotate_heads", rotate_kernel<Element>,
         {dim3(grid_size(divide_up(items, threads))), dim3(threads)}, stream, x, rotary, items);
}

template <class Element>
void head_norm_forward(const RotaryShape& shape, const HeadNorm<Element>& norm, const Element* x,
                       std::int64_t stride, Element* output, NormParts parts, cudaStream_t stream) {
  HeadNorms<Element> norms = norms_of(shape, norm, x, stride, Turn::forward);
  norms.output = output;
  norms.parts = parts;
  if (norms.items == 0) return;
  launch("head_norm_forward", head_norm_forward_kernel<Element>,
         {dim3(grid_size(divide_up(norms.items, teams))), dim3(threads)}, stream, norms);
}

template <class Element, class Gradient>
void head_norm_backward(const RotaryShape& shape, const HeadNorm<Element>& norm, const Element* x,
                        Element* gradient, std::int64_t stride, Gradient* q_weight_gradient,
                        Gradient* k_weight_gradient, bool overwrites, const Workspace& workspace,
                        cudaStream_t stream) {
  SPILLWAY_ASSERT(shape.q_heads > 0 && shape.k_heads > 0);
  SPILLWAY_ASSERT((q_weight_gradient == nullptr) == (k_weight_gradient == nullptr));
  HeadNorms<Element> norms = norms_of(shape, norm, x, stride, Turn::back);
  const std::int64_t blocks = backward_blocks(shape);
  SPILLWAY_ASSERT(static_cast<std::size_t>(blocks * 2 * shape.head_size) * sizeof(float) <=
                  workspace.bytes);
  norms.output = gradient;
  norms.partials = reinterpret_cast<float*>(workspace.data);
  if (norms.items > 0) {
    launch("head_norm_backward", head_norm_backward_kernel<Element>,
           {dim3(grid_size(blocks)), dim3(threads)}, stream, norms);
  }
  if (q_weight_gradient == nullptr) return;
  add_partials<Gradient>(norms.partials, norms.items > 0 ? blocks : 0,
                         {{q_weight_gradient, k_weight_gradient}, 2, shape.head_size, overwrites},
                         stream);
}

#define SPILLWAY_ROTARY(Element)                                                                \
  template void rotate_heads(const RotaryShape&, Element*, std::int64_t, Turn, cudaStream_t);   \
  template void head_norm_forward(const RotaryShape&, const HeadNorm<Element>&, const Element*, \
                                  std::int64_t, Element*, NormParts, cudaStream_t);
SPILLWAY_ROTARY(float)
SPILLWAY_ROTARY(bf16)
#undef SPILLWAY_ROTARY
#define SPILLWAY_HEAD_NORM_BACKWARD(Element, Gradient)                                           \
  template void head_norm_backward(const RotaryShape&, const HeadNorm<Element>&, const Element*, \
                                   Element*, std::int64_t, Gradient*, Gradient*, bool,           \
                                   const Workspace&, cudaStream_t);
SPILLWAY_HEAD_NORM_BACKWARD(float, float)
SPILLWAY_HEAD_NORM_BACKWARD(float, bf16)
SPILLWAY_HEAD_NORM_BACKWARD(bf16, float)
SPILLWAY_HEAD_NORM_BACKWARD(bf16, bf16)
#undef SPILLWAY_HEAD_NORM_BACKWARD

}  // namespace spillway::cuda
