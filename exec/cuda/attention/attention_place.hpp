// What all kernels of attention share: their arguments, their grids, and where a block's head lies.
#pragma once

#include <cmath>
#include <cstdint>

#include "exec/cuda/attention/attention.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

// What every kernel knows of its tensors; 32-bit where it counts tokens and heads.
struct AttentionNumbers {
  int tokens, heads, head_size, channels;
  std::int64_t statistics_stride;
  float scale;       // 1 / sqrt(head size)
  float scale_log2;  // times log2(e)
};

inline AttentionNumbers attention_numbers(const AttentionSizes& sizes) {
  const auto head_size = static_cast<double>(sizes.channels / sizes.heads);
  const auto scale = static_cast<float>(1.0 / std::sqrt(head_size));
  return {static_cast<int>(sizes.tokens), static_cast<int>(sizes.heads),
          static_cast<int>(head_size),    static_cast<int>(sizes.channels),
          sizes.statistics_stride,        scale,
          scale * 1.44269504088896341f};
}

template <class Element>
struct BackwardTensors {
  const Element *qkv, *output;
  const float* log_sum_exp;
  const Element* output_gradient;
  Element* qkv_gradient;
  float* dots;
};

// Where a block's head lies.
struct HeadPlace {
  int sequence, head;
  std::int64_t stride;       // of qkv's rows
  std::int64_t qkv, output;  // offsets of the head's first row
  std::int64_t statistics, dots;
};

// Of `head` of all sequences.
__device__ inline HeadPlace head_place(const AttentionNumbers& numbers, int head) {
  HeadPlace place;
  place.sequence = head / numbers.heads;
  place.head = head % numbers.heads;
  place.stride = 3 * static_cast<std::int64_t>(numbers.channels);
  const std::int64_t first_row = static_cast<std::int64_t>(place.sequence) * numbers.tokens;
  place.qkv = first_row * place.stride + place.head * numbers.head_size;
  place.output = first_row * numbers.channels + place.head * numbers.head_size;
  place.statistics = place.sequence * numbers.statistics_stride +
                     static_cast<std::int64_t>(place.head) * numbers.tokens;
  place.dots = static_cast<std::int64_t>(head) * numbers.tokens;
  return place;
}
// Of the block's own.
__device__ inline HeadPlace head_place(const AttentionNumbers& numbers) {
  return head_place(numbers, static_cast<int>(blockIdx.x));
}

// A block for `rows` queries or keys of a head: heads run fastest, so that the blocks that are
// started first have the same place in all heads.
inline Launch attention_grid(const AttentionSizes& sizes, int rows, int threads, int shared_bytes) {
  Launch shape;
  shape.grid = dim3(static_cast<unsigned>(sizes.sequences * sizes.heads),
                    static_cast<unsigned>((sizes.tokens + rows - 1) / rows));
  shape.block = dim3(static_cast<unsigned>(threads));
  shape.shared_bytes = static_cast<std::size_t>(shared_bytes);
  return shape;
}

}  // namespace spillway::cuda
