#include "exec/cpu/attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.hpp"
#include "exec/cpu/kernels_gemm.hpp"
#include "policies/workload/backend.hpp"

namespace spillway {

namespace {

using ChunkRows = std::array<float, static_cast<std::size_t>(attention_chunk_rows)>;

// Queries first_query .. + rows of a head, and keys first_key .. + keys, which are all they see.
struct Chunk {
  std::int64_t head, kv_head, first_query, rows, first_key, keys;
};

// Calls body for every head and, within it, every chunk of queries, in order.
template <class Body>
void for_each_chunk(const AttentionShape& shape, Body body) {
  SPILLWAY_ASSERT(shape.chunk_rows <= attention_chunk_rows);
  const std::int64_t group = shape.heads / shape.kv_heads;
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    for (std::int64_t first = 0; first < shape.tokens; first += shape.chunk_rows) {
      const std::int64_t rows = std::min(shape.chunk_rows, shape.tokens - first);
      const std::int64_t own = shape.past + first;  // the first query's key
      std::int64_t first_key =
          shape.window > 0 ? std::max<std::int64_t>(own - shape.window + 1, 0) : 0;
      if (shape.starts != nullptr)
        first_key = std::max<std::int64_t>(first_key, shape.starts[first]);
      body(Chunk{head, head / group, first, rows, first_key, own + rows - first_key});
    }
  }
}

float score_scale(const AttentionShape& shape) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_width)));
}

// The chunk's part of the rows: its queries, its keys and their values.
template <class Element>
QueryKeyValue<Element> part_of(const AttentionShape& shape, const Chunk& chunk,
                               const QueryKeyValue<Element>& all) {
  const std::int64_t kv_column = chunk.kv_head * shape.head_width;
  return {all.query + chunk.first_query * all.query_stride + chunk.head * shape.head_width,
          all.key + chunk.first_key * all.key_stride + kv_column,
          all.value + chunk.first_key * all.value_stride + kv_column,
          all.query_stride,
          all.key_stride,
          all.value_stride};
}

// scores (rows, keys) = q k^T / sqrt(D).
AttentionRows compute_scores(const AttentionShape& shape, const Chunk& chunk,
                             const QueryKeyValue<const float>& part, float* scores) {
  gemm(CblasNoTrans, CblasTrans, chunk.rows, chunk.keys, shape.head_width, score_scale(shape),
       {part.query, part.query_stride}, {part.key, part.key_stride}, 0.0f, {scores, chunk.keys});
  return {scores,         chunk.rows,
          chunk.keys,     shape.past + chunk.first_query - chunk.first_key,
          shape.window,   shape.starts != nullptr ? shape.starts + chunk.first_query : nullptr,
          chunk.first_key};
}

}  // namespace

void attention_forward(const CpuKernels& kernels, const AttentionShape& shape,
                       const QueryKeyValue<const float>& in, float* output, float* log_sum_exp,
                       float* scores) {
  const std::int64_t size = shape.head_width, width = shape.width();
  for_each_chunk(shape, [&](const Chunk& chunk) {
    const QueryKeyValue<const float> part = part_of(shape, chunk, in);
    ChunkRows row_sums, known_before;
    kernels.attention_softmax(compute_scores(shape, chunk, part, scores), row_sums.data(),
                              log_sum_exp != nullptr
                                  ? log_sum_exp + chunk.head * shape.tokens + chunk.first_query
                                  : known_before.data());
    if (output == nullptr) return;
    float* out = output + chunk.first_query * width + chunk.head * size;
    gemm(CblasNoTrans, CblasNoTrans, chunk.rows, size, chunk.keys, 1.0f, {scores, chunk.keys},
         {part.value, part.value_stride}, 0.0f, {out, width});
    kernels.divide_rows(out, row_sums.data(), chunk.rows, size, width);
  });
}

// With p the probabilities and o = p v:  dv = p^T do,  dp = do v^T,  ds = p (dp - do . o) /
// sqrt(D), dq = ds k,  dk = ds^T q; dk and dv add up over the query heads of a group.
void attention_backward(const CpuKernels& kernels, const AttentionShape& shape,
                        const QueryKeyValue<const float>& in, const float* output,
                        const float* log_sum_exp, const float* output_gradient, float* qkv_gradient,
                        float* scratch) {
  const std::int64_t size = shape.head_width, width = shape.width();
  float* probabilities = scratch;
  float* score_gradient = scratch + shape.chunk_rows * shape.tokens;
  const QueryKeyValue<float> gradients = side_by_side(shape, qkv_gradient);
  const std::int64_t wide = gradients.value_stride;
  std::fill_n(qkv_gradient, shape.tokens * wide, 0.0f);
  for_each_chunk(shape, [&](const Chunk& chunk) {
    const std::int64_t rows = chunk.rows, keys = chunk.keys;
    const std::int64_t at = chunk.first_query * width + chunk.head * size;
    const QueryKeyValue<const float> part = part_of(shape, chunk, in);
    const QueryKeyValue<float> gradient = part_of(shape, chunk, gradients);
    const float* out_gradient = output_gradient + at;

    const AttentionRows p = compute_scores(shape, chunk, part, probabilities);
    kernels.attention_probabilities(p, log_sum_exp + chunk.head * shape.tokens + chunk.first_query);
    ChunkRows dots;
    kernels.row_dots(out_gradient, output + at, dots.data(), rows, size, width);
    gemm(CblasTrans, CblasNoTrans, keys, size, rows, 1.0f, {probabilities, keys},
         {out_gradient, width}, 1.0f, {gradient.value, wide});
    gemm(CblasNoTrans, CblasTrans, rows, keys, size, 1.0f, {out_gradient, width},
         {part.value, part.value_stride}, 0.0f, {score_gradient, keys});
    kernels.attention_score_gradient(p, score_gradient, dots.data(), score_scale(shape));
    gemm(CblasNoTrans, CblasNoTrans, rows, size, keys, 1.0f, {score_gradient, keys},
         {part.key, part.key_stride}, 0.0f, {gradient.query, wide});
    gemm(CblasTrans, CblasNoTrans, keys, size, rows, 1.0f, {score_gradient, keys},
         {part.query, part.query_stride}, 1.0f, {gradient.key, wide});
  });
}

}  // namespace spillway
