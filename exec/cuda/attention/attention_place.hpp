// What all kernels of attention share: their arguments, their grids, and where a block's head lies.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/errors.hpp"
#include "exec/cuda/attention/attention.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

// What every kernel knows of its tensors; 32-bit where it counts tokens and heads.
struct AttentionNumbers {
  int tokens, heads, head_size, channels;
  std::int64_t statistics_stride;
  float scale;       // 1 / sqrt(head size)
  float scale_log2;  // times log2(e)
  // Of no use to kernels that are not General.
  int group, kv_channels;  // heads of queries that share one of keys; K
  int window;              // T where there is none
  std::int64_t qk_stride, v_stride;
  AttentionBorders borders;  // of use to kernels that have Borders
};

template <class Element>
AttentionNumbers attention_numbers(const AttentionSizes& sizes,
                                   const AttentionInput<Element>& input) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes.head_size)));
  return {static_cast<int>(sizes.tokens),
          static_cast<int>(sizes.heads),
          static_cast<int>(sizes.head_size),
          static_cast<int>(sizes.channels()),
          sizes.statistics_stride,
          scale,
          scale * 1.44269504088896341f,
          static_cast<int>(sizes.heads / sizes.kv_heads),
          static_cast<int>(sizes.kv_channels()),
          static_cast<int>(sizes.has_window() ? sizes.window : sizes.tokens),
          input.qk_stride,
          input.v_stride,
          sizes.borders};
}

// Throws InputError, or asserts, unless there are kernels for it.
inline void require_attention(const AttentionSizes& sizes) {
  require_attention_head(sizes.channels(), sizes.heads);
  SPILLWAY_ASSERT(sizes.kv_heads > 0 && sizes.heads % sizes.kv_heads == 0 && sizes.window >= 0);
}

template <class Element>
struct BackwardTensors {
  AttentionInput<Element> input;
  const Element* output;
  const float* log_sum_exp;
  const Element* output_gradient;
  Element* qkv_gradient;
  float* dots;
};

// Kernels exist in three kinds, which know it when they are compiled: ones for as many heads of
// keys as of queries, q, k and v side by side and no window, as in a GPT; General ones; and General
// ones that keep to the Borders of documents.
template <class Element>
bool needs_general(const AttentionSizes& sizes, const AttentionInput<Element>& input) {
  return sizes.kv_heads != sizes.heads || sizes.has_window() ||
         input.qk_stride != sizes.columns() || input.v_stride != sizes.columns() ||
         input.v != input.qk + 2 * sizes.channels();
}
// Calls body(General, Borders), a std::bool_constant each.
template <class Element, class Body>
void with_generality(const AttentionSizes& sizes, const AttentionInput<Element>& input, Body body) {
  if (sizes.borders.starts != nullptr) return body(std::true_type{}, std::true_type{});
  if (needs_general(sizes, input)) return body(std::true_type{}, std::false_type{});
  body(std::false_type{}, std::false_type{});
}

// Where a head lies: elements from row to row, and the first row's offset, in each of the tensors.
struct HeadPlace {
  int sequence, head;
  std::int64_t stride, v_stride, gradient_stride;
  std::int64_t q, k, v;                             // in the input's qk, qk and v
  std::int64_t q_gradient, k_gradient, v_gradient;  // in qkv_gradient
  std::int64_t output, statistics, dots;
};

// `head`: of queries, of all sequences; for k and v, the one of keys that it reads.
template <bool General>
__device__ inline HeadPlace head_place(const AttentionNumbers& numbers, int head) {
  HeadPlace place;
  place.sequence = head / numbers.heads;
  place.head = head % numbers.heads;
  const std::int64_t first_row = static_cast<std::int64_t>(place.sequence) * numbers.tokens;
  const int column = place.head * numbers.head_size;
  if constexpr (General) {
    const int kv_column = place.head / numbers.group * numbers.head_size;
    place.stride = numbers.qk_stride;
    place.v_stride = numbers.v_stride;
    place.q = first_row * place.stride + column;
    place.k = first_row * place.stride + numbers.channels + kv_column;
    place.v = first_row * place.v_stride + kv_column;
    place.gradient_stride = numbers.channels + 2 * static_cast<std::int64_t>(numbers.kv_channels);
    const std::int64_t gradient = first_row * place.gradient_stride;
    place.q_gradient = gradient + column;
    place.k_gradient = gradient + numbers.channels + kv_column;
    place.v_gradient = place.k_gradient + numbers.kv_channels;
  } else {
    place.stride = 3 * static_cast<std::int64_t>(numbers.channels);
    place.v_stride = place.gradient_stride = place.stride;
    place.q = place.q_gradient = first_row * place.stride + column;
    place.k = place.k_gradient = place.q + numbers.channels;
    place.v = place.q;
    place.v_gradient = place.k + numbers.channels;
  }
  place.output = first_row * numbers.channels + column;
  place.statistics = place.sequence * numbers.statistics_stride +
                     static_cast<std::int64_t>(place.head) * numbers.tokens;
  place.dots = static_cast<std::int64_t>(head) * numbers.tokens;
  return place;
}
// Of the block's own.
template <bool General>
__device__ inline HeadPlace head_place(const AttentionNumbers& numbers) {
  return head_place<General>(numbers, static_cast<int>(blockIdx.x));
}

// A border (starts or ends) of a token of a sequence; that of the last one for what lies beyond.
__device__ inline int border_of(const AttentionNumbers& numbers, const std::int32_t* borders,
                                int sequence, int token) {
  const int last = numbers.tokens - 1;
  return borders[static_cast<std::int64_t>(sequence) * numbers.tokens +
                 (token < last ? token : last)];
}

// The first key that any query from `query` on sees, in its sequence.
template <bool General, bool Borders>
__device__ inline int first_key_seen(const AttentionNumbers& numbers, int sequence, int query) {
  if constexpr (!General) return 0;
  int first = query - numbers.window + 1;
  if constexpr (Borders) {
    const int start = border_of(numbers, numbers.borders.starts, sequence, query);
    first = start > first ? start : first;
  }
  return first > 0 ? first : 0;
}

// The first query after `key` that does not see it.
__device__ inline int end_of_sight(const AttentionNumbers& numbers, int sequence, int key) {
  const int seen = key + numbers.window;
  const int end = border_of(numbers, numbers.borders.ends, sequence, key);
  return seen < end ? seen : end;
}

// The end of the tiles of `queries` queries that see any of `keys` keys from `first_key` on.
template <bool General, bool Borders>
__device__ inline int end_of_queries(const AttentionNumbers& numbers, int sequence, int first_key,
                                     int keys, int queries) {
  int end = numbers.tokens;
  if constexpr (General) {
    const int seen = Borders ? end_of_sight(numbers, sequence, first_key + keys - 1)
                             : first_key + keys - 1 + numbers.window;
    end = seen < end ? seen : end;
  }
  return (end + queries - 1) / queries;
}

// What a warp's rows go by beside the diagonal where there are Borders: queries by the first key
// that each sees, keys by the first query that does not see them any more. Both ascend with the
// rows: what the first row and the last one have tells of most tiles what there is to know. Each
// row's own is read where a tile needs it, for there are no registers to keep it in.
enum class RowsAre { queries, keys };
template <RowsAre Rows>
struct RowLimits {
  int sequence, row;  // row: the warp's first
  int first, last;    // limits of the warp's first and last row

  __device__ static int limit(const AttentionNumbers& numbers, int sequence, int row) {
    if constexpr (Rows == RowsAre::keys) return end_of_sight(numbers, sequence, row);
    return first_key_seen<true, true>(numbers, sequence, row);
  }
  __device__ void set(const AttentionNumbers& numbers, int of_sequence, int first_row, int rows) {
    sequence = of_sequence;
    row = first_row;
    first = limit(numbers, sequence, row);
    last = limit(numbers, sequence, row + rows - 1);
  }
  // Of the lane's rows 16 m + 8 half + lane / 4.
  __device__ void of_lane(const AttentionNumbers& numbers, int m, int (&of)[2]) const {
    const int own = row + 16 * m + static_cast<int>(threadIdx.x) % warp_size / 4;
    of[0] = limit(numbers, sequence, own);
    of[1] = limit(numbers, sequence, own + 8);
  }
};

// A block for `rows` queries or keys of each of `heads`: heads run fastest, so that the blocks that
// are started first have the same place in all heads.
inline Launch attention_grid(const AttentionSizes& sizes, std::int64_t heads, int rows, int threads,
                             int shared_bytes) {
  Launch shape;
  shape.grid = dim3(static_cast<unsigned>(sizes.sequences * heads),
                    static_cast<unsigned>((sizes.tokens + rows - 1) / rows));
  shape.block = dim3(static_cast<unsigned>(threads));
  shape.shared_bytes = static_cast<std::size_t>(shared_bytes);
  return shape;
}

}  // namespace spillway::cuda
