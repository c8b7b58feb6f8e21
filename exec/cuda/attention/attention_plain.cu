// Causal attention in fp32, in tiles of 32 queries x 32 keys, with an online softmax.
//
// A block of 128 threads holds tiles of up to 32 x 128 numbers as fp32 in shared memory. Thread
// (y, x) of 16 x 8 has rows 2 y and 2 y + 1 of whatever the block computes: of scores, columns x +
// 8 j; of what is as wide as a head, columns 4 x + 32 j and the next three. Its 8 neighbours in a
// row are lanes of one warp. Sums run in the order of keys, or of queries.
#include "exec/cuda/attention/attention_plain.hpp"

#include <cmath>

#include "exec/cuda/attention/attention_tiles.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

constexpr int side = 32;      // queries, keys
constexpr int threads = 128;  // 16 x 8
constexpr int tile_stride = 128 + 4, weights_stride = side + 4;
constexpr int tile_floats = side * tile_stride, weights_floats = side * weights_stride;

// A thread's part of side x side scores, and of side x head size.
struct ScorePart {
  float at[2][4];
};
struct HeadPart {
  float at[2][4][4];
};

struct ThreadPlace {
  int row, column;  // the first of its two rows; x
};
__device__ inline ThreadPlace thread_place() {
  return {static_cast<int>(threadIdx.x) / 8 * 2, static_cast<int>(threadIdx.x) % 8};
}

__device__ inline float sum_of_row(float value) {
  for (int distance = 4; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
__device__ inline float most_of_row(float value) {
  for (int distance = 4; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

// tile[row][column] = from[row * stride + column]; zero beyond `rows`.
template <class Element>
__device__ void load_tile(float* tile, const Element* from, std::int64_t stride, int rows,
                          int head_size) {
  for (int i = static_cast<int>(threadIdx.x); i < side * head_size; i += threads) {
    const int row = i / head_size, column = i % head_size;
    tile[row * tile_stride + column] = row < rows ? to_float(from[row * stride + column]) : 0.0f;
  }
}

// a b^T: sums over the head's columns.
__device__ inline ScorePart products(const float* a, const float* b, int head_size) {
  const ThreadPlace place = thread_place();
  ScorePart sums = {};
  for (int d = 0; d < head_size; d += 4) {
    float left[2][4], right[4][4];
    SPILLWAY_UNROLL
    for (int k = 0; k < 4; ++k) {
      SPILLWAY_UNROLL
      for (int i = 0; i < 2; ++i) left[i][k] = a[(place.row + i) * tile_stride + d + k];
      SPILLWAY_UNROLL
      for (int j = 0; j < 4; ++j) right[j][k] = b[(place.column + 8 * j) * tile_stride + d + k];
    }
    SPILLWAY_UNROLL
    for (int k = 0; k < 4; ++k) {
      SPILLWAY_UNROLL
      for (int i = 0; i < 2; ++i) {
        SPILLWAY_UNROLL
        for (int j = 0; j < 4; ++j) sums.at[i][j] = fmaf(left[i][k], right[j][k], sums.at[i][j]);
      }
    }
  }
  return sums;
}

// sums += weights (side x side) b (side x head size).
__device__ inline void add_weighted(HeadPart& sums, const float* weights, const float* b,
                                    int head_size) {
  const ThreadPlace place = thread_place();
  for (int k = 0; k < side; ++k) {
    const float w[2] = {weights[place.row * weights_stride + k],
                        weights[(place.row + 1) * weights_stride + k]};
    SPILLWAY_UNROLL
    for (int j = 0; j < 4; ++j) {
      if (32 * j + 4 * place.column >= head_size) break;
      SPILLWAY_UNROLL
      for (int c = 0; c < 4; ++c) {
        const float value = b[k * tile_stride + 32 * j + 4 * place.column + c];
        SPILLWAY_UNROLL
        for (int i = 0; i < 2; ++i) sums.at[i][j][c] = fmaf(w[i], value, sums.at[i][j][c]);
      }
    }
  }
}

__device__ inline void store_scores(float* weights, const ScorePart& part) {
  const ThreadPlace place = thread_place();
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      weights[(place.row + i) * weights_stride + place.column + 8 * j] = part.at[i][j];
}

template <class Element>
__device__ inline void store_rows(const HeadPart& part, const float (&factor)[2], Element* to,
                                  std::int64_t stride, int rows, int head_size) {
  const ThreadPlace place = thread_place();
  SPILLWAY_UNROLL
  for (int i = 0; i < 2; ++i) {
    if (place.row + i >= rows) break;
    SPILLWAY_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int column = 32 * j + 4 * place.column;
      if (column >= head_size) break;
      SPILLWAY_UNROLL
      for (int c = 0; c < 4; ++c)
        to[(place.row + i) * stride + column + c] =
            from_float<Element>(part.at[i][j][c] * factor[i]);
    }
  }
}

template <bool Borders>
__device__ inline bool sees(const AttentionNumbers& numbers, int sequence, int query, int key) {
  return key <= query && key > query - numbers.window &&
         (!Borders || key >= border_of(numbers, numbers.borders.starts, sequence, query));
}

template <class Element>
struct PlainForward {
  AttentionInput<Element> input;
  Element* output;
  float* log_sum_exp;
};

template <class Element, bool Borders>
__global__ void __launch_bounds__(threads)
    plain_forward_kernel(PlainForward<Element> tensors, AttentionNumbers numbers) {
  const ThreadPlace place = thread_place();
  const HeadPlace head = head_place<true>(numbers);
  const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * side;
  const Element* q = tensors.input.qk + head.q;
  float* const q_tile = reinterpret_cast<float*>(dynamic_shared());
  float *const k_tile = q_tile + tile_floats, *const v_tile = k_tile + tile_floats,
               *const weights = v_tile + tile_floats;
  load_tile(q_tile, q + first_query * head.stride, head.stride, numbers.tokens - first_query,
            numbers.head_size);
  HeadPart output = {};
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
  for (int first_key =
           first_key_seen<true, Borders>(numbers, head.sequence, first_query) / side * side;
       first_key < first_query + side && first_key < numbers.tokens; first_key += side) {
    __syncthreads();
    load_tile(k_tile, tensors.input.qk + head.k + first_key * head.stride, head.stride,
              numbers.tokens - first_key, numbers.head_size);
    load_tile(v_tile, tensors.input.v + head.v + first_key * head.v_stride, head.v_stride,
              numbers.tokens - first_key, numbers.head_size);
    __syncthreads();
    ScorePart scores = products(q_tile, k_tile, numbers.head_size);
    for (int i = 0; i < 2; ++i) {
      const int query = first_query + place.row + i;
      const float before = maximum[i];
      float most = -INFINITY;
      for (int j = 0; j < 4; ++j) {
        const bool seen =
            sees<Borders>(numbers, head.sequence, query, first_key + place.column + 8 * j);
        scores.at[i][j] = seen ? scores.at[i][j] * numbers.scale : -INFINITY;
        most = fmaxf(most, scores.at[i][j]);
      }
      maximum[i] = fmaxf(before, most_of_row(most));
      // A row that has seen no key yet: infinities have no difference.
      most = maximum[i] == -INFINITY ? 0.0f : maximum[i];
      const float factor = expf(before - most);
      float added = 0.0f;
      for (int j = 0; j < 4; ++j) {
        scores.at[i][j] = expf(scores.at[i][j] - most);
        added += scores.at[i][j];
      }
      sum[i] = fmaf(sum[i], factor, sum_of_row(added));
      for (int j = 0; j < 4; ++j)
        for (int c = 0; c < 4; ++c) output.at[i][j][c] *= factor;
    }
    if (tensors.output == nullptr) continue;
    store_scores(weights, scores);
    __syncthreads();
    add_weighted(output, weights, v_tile, numbers.head_size);
  }
  const int rows = numbers.tokens - first_query;
  if (tensors.log_sum_exp != nullptr && place.column == 0) {
    for (int i = 0; i < 2; ++i) {
      if (place.row + i < rows)
        tensors.log_sum_exp[head.statistics + first_query + place.row + i] =
            maximum[i] + logf(sum[i]);
    }
  }
  if (tensors.output == nullptr) return;
  const float reciprocal[2] = {1.0f / sum[0], 1.0f / sum[1]};
  store_rows(
      output, reciprocal,
      tensors.output + head.output + static_cast<std::int64_t>(first_query) * numbers.channels,
      numbers.channels, rows, numbers.head_size);
}

// dots[sequence][head][token] = dO . O; 8 lanes for each.
template <class Element>
__global__ void __launch_bounds__(threads)
    plain_dots_kernel(BackwardTensors<Element> tensors, AttentionNumbers numbers,
                      std::int64_t items) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * (threads / 8) + threadIdx.x / 8;
  float sum = 0.0f;
  if (item < items) {
    for (int column = static_cast<int>(threadIdx.x) % 8; column < numbers.head_size; column += 8) {
      const std::int64_t at = item * numbers.head_size + column;
      sum = fmaf(to_float(tensors.output[at]), to_float(tensors.output_gradient[at]), sum);
    }
  }
  sum = sum_of_row(sum);
  if (item < items && threadIdx.x % 8 == 0) {
    const std::int64_t row = item / numbers.heads, head = item % numbers.heads;
    const std::int64_t sequence = row / numbers.tokens, token = row % numbers.tokens;
    tensors.dots[(sequence * numbers.heads + head) * numbers.tokens + token] = sum;
  }
}

// Scores and dO v^T become p and its gradient times p: dS without the scale.
__device__ inline void score_gradients(ScorePart& scores, ScorePart& gradients, float scale, int i,
                                       int j, bool seen, float log_sum_exp, float dots) {
  const float p = seen ? expf(fmaf(scores.at[i][j], scale, -log_sum_exp)) : 0.0f;
  scores.at[i][j] = p;
  gradients.at[i][j] = p * (gradients.at[i][j] - dots);
}

// dK and dV of a block of keys. The rows are keys, the columns of scores are queries.
template <class Element, bool Borders>
__global__ void __launch_bounds__(threads)
    plain_keys_kernel(BackwardTensors<Element> tensors, AttentionNumbers numbers) {
  const ThreadPlace place = thread_place();
  // The first of the group of heads that share the block's head of keys.
  const int first_head = static_cast<int>(blockIdx.x) * numbers.group;
  const HeadPlace head = head_place<true>(numbers, first_head);
  const int first_key = static_cast<int>(blockIdx.y) * side;
  float* const k_tile = reinterpret_cast<float*>(dynamic_shared());
  float *const v_tile = k_tile + tile_floats, *const q_tile = v_tile + tile_floats,
               *const do_tile = q_tile + tile_floats, *const p = do_tile + tile_floats,
               *const ds = p + weights_floats;
  const int rows = numbers.tokens - first_key;
  load_tile(k_tile, tensors.input.qk + head.k + first_key * head.stride, head.stride, rows,
            numbers.head_size);
  load_tile(v_tile, tensors.input.v + head.v + first_key * head.v_stride, head.v_stride, rows,
            numbers.head_size);
  HeadPart k_gradient = {}, v_gradient = {};
  const int tiles = end_of_queries<true, Borders>(numbers, head.sequence, first_key, side, side) -
                    first_key / side;
  for (int turn = 0; turn < numbers.group * tiles; ++turn) {
    __syncthreads();
    const HeadPlace of_queries = head_place<true>(numbers, first_head + turn / tiles);
    const int first_query = first_key + turn % tiles * side;
    const int queries = numbers.tokens - first_query;
    load_tile(q_tile, tensors.input.qk + of_queries.q + first_query * head.stride, head.stride,
              queries, numbers.head_size);
    load_tile(do_tile,
              tensors.output_gradient + of_queries.output +
                  static_cast<std::int64_t>(first_query) * numbers.channels,
              numbers.channels, queries, numbers.head_size);
    __syncthreads();
    ScorePart scores = products(k_tile, q_tile, numbers.head_size);
    ScorePart gradients = products(v_tile, do_tile, numbers.head_size);
    for (int j = 0; j < 4; ++j) {
      const int column = place.column + 8 * j, query = first_query + column;
      const bool valid = column < queries;
      const float log_sum_exp = valid ? tensors.log_sum_exp[of_queries.statistics + query] : 0.0f;
      const float dots = valid ? tensors.dots[of_queries.dots + query] : 0.0f;
      for (int i = 0; i < 2; ++i)
        score_gradients(
            scores, gradients, numbers.scale, i, j,
            valid && sees<Borders>(numbers, head.sequence, query, first_key + place.row + i),
            log_sum_exp, dots);
    }
    store_scores(p, scores);
    store_scores(ds, gradients);
    __syncthreads();
    add_weighted(v_gradient, p, do_tile, numbers.head_size);
    add_weighted(k_gradient, ds, q_tile, numbers.head_size);
  }
  const float scale[2] = {numbers.scale, numbers.scale}, one[2] = {1.0f, 1.0f};
  const std::int64_t first_row = first_key * head.gradient_stride;
  store_rows(k_gradient, scale, tensors.qkv_gradient + head.k_gradient + first_row,
             head.gradient_stride, rows, numbers.head_size);
  store_rows(v_gradient, one, tensors.qkv_gradient + head.v_gradient + first_row,
             head.gradient_stride, rows, numbers.head_size);
}

// dQ of a block of queries.
template <class Element, bool Borders>
__global__ void __launch_bounds__(threads)
    plain_queries_kernel(BackwardTensors<Element> tensors, AttentionNumbers numbers) {
  const ThreadPlace place = thread_place();
  const HeadPlace head = head_place<true>(numbers);
  const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * side;
  float* const q_tile = reinterpret_cast<float*>(dynamic_shared());
  float *const do_tile = q_tile + tile_floats, *const k_tile = do_tile + tile_floats,
               *const v_tile = k_tile + tile_floats, *const ds = v_tile + tile_floats;
  const Element* q = tensors.input.qk + head.q;
  const int rows = numbers.tokens - first_query;
  load_tile(q_tile, q + first_query * head.stride, head.stride, rows, numbers.head_size);
  load_tile(do_tile,
            tensors.output_gradient + head.output +
                static_cast<std::int64_t>(first_query) * numbers.channels,
            numbers.channels, rows, numbers.head_size);
  float log_sum_exp[2], dots[2];
  for (int i = 0; i < 2; ++i) {
    const int query = first_query + place.row + i;
    const bool valid = query < numbers.tokens;
    log_sum_exp[i] = valid ? tensors.log_sum_exp[head.statistics + query] : 0.0f;
    dots[i] = valid ? tensors.dots[head.dots + query] : 0.0f;
  }
  HeadPart q_gradient = {};
  for (int first_key =
           first_key_seen<true, Borders>(numbers, head.sequence, first_query) / side * side;
       first_key < first_query + side && first_key < numbers.tokens; first_key += side) {
    __syncthreads();
    load_tile(k_tile, tensors.input.qk + head.k + first_key * head.stride, head.stride,
              numbers.tokens - first_key, numbers.head_size);
    load_tile(v_tile, tensors.input.v + head.v + first_key * head.v_stride, head.v_stride,
              numbers.tokens - first_key, numbers.head_size);
    __syncthreads();
    ScorePart scores = products(q_tile, k_tile, numbers.head_size);
    ScorePart gradients = products(do_tile, v_tile, numbers.head_size);
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 4; ++j)
        score_gradients(scores, gradients, numbers.scale, i, j,
                        sees<Borders>(numbers, head.sequence, first_query + place.row + i,
                                      first_key + place.column + 8 * j) &&
                            place.row + i < rows,
                        log_sum_exp[i], dots[i]);
    store_scores(ds, gradients);
    __syncthreads();
    add_weighted(q_gradient, ds, k_tile, numbers.head_size);
  }
  const float scale[2] = {numbers.scale, numbers.scale};
  store_rows(q_gradient, scale,
             tensors.qkv_gradient + head.q_gradient + first_query * head.gradient_stride,
             head.gradient_stride, rows, numbers.head_size);
}

}  // namespace

template <class Element>
void attention_forward_plain(const AttentionSizes& sizes, const AttentionInput<Element>& input,
                             Element* output, float* log_sum_exp, cudaStream_t stream) {
  require_attention(sizes);
  if (sizes.sequences == 0 || sizes.tokens == 0) return;
  if (output == nullptr && log_sum_exp == nullptr) return;
  const bool borders = sizes.borders.starts != nullptr;
  launch("attention_forward_plain",
         borders ? plain_forward_kernel<Element, true> : plain_forward_kernel<Element, false>,
         attention_grid(sizes, sizes.heads, side, threads, 4 * (3 * tile_floats + weights_floats)),
         stream, PlainForward<Element>{input, output, log_sum_exp},
         attention_numbers(sizes, input));
}

template <class Element>
void attention_backward_plain(const AttentionSizes& sizes, const AttentionInput<Element>& input,
                              const Element* output, const float* log_sum_exp,
                              const Element* output_gradient, Element* qkv_gradient, float* dots,
                              cudaStream_t stream) {
  require_attention(sizes);
  if (sizes.sequences == 0 || sizes.tokens == 0) return;
  const BackwardTensors<Element> tensors{input,           output,       log_sum_exp,
                                         output_gradient, qkv_gradient, dots};
  const AttentionNumbers numbers = attention_numbers(sizes, input);
  const std::int64_t items = sizes.sequences * sizes.tokens * sizes.heads;
  constexpr int per_block = threads / 8;
  launch("attention_dots_plain", plain_dots_kernel<Element>,
         Launch{dim3(static_cast<unsigned>((items + per_block - 1) / per_block)), dim3(threads)},
         stream, tensors, numbers, items);
  const bool borders = sizes.borders.starts != nullptr;
  launch("attention_keys_plain",
         borders ? plain_keys_kernel<Element, true> : plain_keys_kernel<Element, false>,
         attention_grid(sizes, sizes.kv_heads, side, threads,
                        4 * (4 * tile_floats + 2 * weights_floats)),
         stream, tensors, numbers);
  launch("attention_queries_plain",
         borders ? plain_queries_kernel<Element, true> : plain_queries_kernel<Element, false>,
         attention_grid(sizes, sizes.heads, side, threads, 4 * (4 * tile_floats + weights_floats)),
         stream, tensors, numbers);
}

template void attention_forward_plain(const AttentionSizes&, const AttentionInput<float>&, float*,
                                      float*, cudaStream_t);
template void attention_forward_plain(const AttentionSizes&, const AttentionInput<bf16>&, bf16*,
                                      float*, cudaStream_t);
template void attention_backward_plain(const AttentionSizes&, const AttentionInput<float>&,
                                       const float*, const float*, const float*, float*, float*,
                                       cudaStream_t);
template void attention_backward_plain(const AttentionSizes&, const AttentionInput<bf16>&,
                                       const bf16*, const float*, const bf16*, bf16*, float*,
                                       cudaStream_t);

template <>
void attention_forward<float>(const AttentionSizes& sizes, const AttentionInput<float>& input,
                              float* output, float* log_sum_exp, cudaStream_t stream) {
  attention_forward_plain(sizes, input, output, log_sum_exp, stream);
}

template <>
void attention_backward<float>(const AttentionSizes& sizes, const AttentionInput<float>& input,
                               const float* output, const float* log_sum_exp,
                               const float* output_gradient, float* qkv_gradient, float* dots,
                               cudaStream_t stream) {
  attention_backward_plain(sizes, input, output, log_sum_exp, output_gradient, qkv_gradient, dots,
                           stream);
}

}  // namespace spillway::cuda
