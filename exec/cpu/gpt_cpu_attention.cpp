#include "exec/cpu/gpt_cpu_attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.hpp"
#include "exec/cpu/kernels_gemm.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

using ChunkRows = std::array<float, static_cast<std::size_t>(attention_chunk_rows)>;

struct Chunk {
  std::int64_t head, head_size, first, rows, keys;
};

// Calls body for every head and, within it, every chunk of queries, in order.
template <class Body>
void for_each_chunk(const AttentionShape& shape, Body body) {
  const std::int64_t head_size = shape.channels / shape.heads;
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    for (std::int64_t first = 0; first < shape.tokens; first += shape.chunk_rows) {
      const std::int64_t rows = std::min(shape.chunk_rows, shape.tokens - first);
      body(Chunk{head, head_size, first, rows, first + rows});
    }
  }
}

float score_scale(const Chunk& chunk) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(chunk.head_size)));
}

// scores (rows, keys) = q k^T / sqrt(head size).
void compute_scores(const AttentionShape& shape, const Chunk& chunk, const float* qkv,
                    float* scores) {
  const std::int64_t stride = 3 * shape.channels;
  const float* q = qkv + chunk.head * chunk.head_size;
  const float* k = q + shape.channels;
  gemm(CblasNoTrans, CblasTrans, chunk.rows, chunk.keys, chunk.head_size, score_scale(chunk),
       {q + chunk.first * stride, stride}, {k, stride}, 0.0f, {scores, chunk.keys});
}

}  // namespace

void attention_forward(const CpuKernels& kernels, const AttentionShape& shape, const float* qkv,
                       float* output, float* log_sum_exp, float* scores) {
  SPILLWAY_ASSERT(shape.chunk_rows <= attention_chunk_rows);
  const std::int64_t c = shape.channels;
  for_each_chunk(shape, [&](const Chunk& chunk) {
    compute_scores(shape, chunk, qkv, scores);
    ChunkRows row_sums, known_before;
    kernels.attention_softmax({scores, chunk.rows, chunk.keys, chunk.first}, row_sums.data(),
                              log_sum_exp != nullptr
                                  ? log_sum_exp + chunk.head * shape.tokens + chunk.first
                                  : known_before.data());
    if (output == nullptr) return;
    const float* v = qkv + 2 * c + chunk.head * chunk.head_size;
    float* out = output + chunk.first * c + chunk.head * chunk.head_size;
    gemm(CblasNoTrans, CblasNoTrans, chunk.rows, chunk.head_size, chunk.keys, 1.0f,
         {scores, chunk.keys}, {v, 3 * c}, 0.0f, {out, c});
    kernels.divide_rows(out, row_sums.data(), chunk.rows, chunk.head_size, c);
  });
}

// With p the probabilities and o = p v:  dv = p^T do,  dp = do v^T,  ds = p (dp - do . o) /
// sqrt(head size),  dq = ds k,  dk = ds^T q.
void attention_backward(const CpuKernels& kernels, const AttentionShape& shape, const float* qkv,
                        const float* output, const float* log_sum_exp, const float* output_gradient,
                        float* qkv_gradient, float* scratch) {
  SPILLWAY_ASSERT(shape.chunk_rows <= attention_chunk_rows);
  const std::int64_t c = shape.channels, wide = 3 * c;
  float* probabilities = scratch;
  float* score_gradient = scratch + shape.chunk_rows * shape.tokens;
  std::fill_n(qkv_gradient, shape.tokens * wide, 0.0f);
  for_each_chunk(shape, [&](const Chunk& chunk) {
    const std::int64_t rows = chunk.rows, keys = chunk.keys, size = chunk.head_size;
    const std::int64_t column = chunk.head * size;
    const float *q = qkv + chunk.first * wide + column, *k = qkv + c + column, *v = k + c;
    float *q_gradient = qkv_gradient + chunk.first * wide + column,
          *k_gradient = qkv_gradient + c + column, *v_gradient = k_gradient + c;
    const float* out_gradient = output_gradient + chunk.first * c + column;

    compute_scores(shape, chunk, qkv, probabilities);
    const AttentionRows p{probabilities, rows, keys, chunk.first};
    kernels.attention_probabilities(p, log_sum_exp + chunk.head * shape.tokens + chunk.first);
    ChunkRows dots;
    kernels.row_dots(out_gradient, output + chunk.first * c + column, dots.data(), rows, size, c);
    gemm(CblasTrans, CblasNoTrans, keys, size, rows, 1.0f, {probabilities, keys}, {out_gradient, c},
         1.0f, {v_gradient, wide});
    gemm(CblasNoTrans, CblasTrans, rows, keys, size, 1.0f, {out_gradient, c}, {v, wide}, 0.0f,
         {score_gradient, keys});
    kernels.attention_score_gradient(p, score_gradient, dots.data(), score_scale(chunk));
    gemm(CblasNoTrans, CblasNoTrans, rows, size, keys, 1.0f, {score_gradient, keys}, {k, wide},
         0.0f, {q_gradient, wide});
    gemm(CblasTrans, CblasNoTrans, keys, size, rows, 1.0f, {score_gradient, keys}, {q, wide}, 1.0f,
         {k_gradient, wide});
  });
}

}  // namespace spillway
