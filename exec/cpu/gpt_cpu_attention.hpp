// Causal multi-head attention of one sequence in fp32 on the CPU, over chunks of queries.
//
// A chunk of R queries starting at q0 needs the scores of keys 0 .. q0+R-1 only, so memory is R x T
// per head instead of T x T, and the causal half is mostly not computed. Backward keeps no
// probabilities: it rebuilds them from q, k and the saved log-sum-exp, as FlashAttention does (Dao
// et al., 2022).
#pragma once

#include <cstdint>

#include "exec/cpu/kernels_cpu.hpp"

namespace spillway {

struct AttentionShape {
  std::int64_t tokens;      // T
  std::int64_t channels;    // C
  std::int64_t heads;       // NH
  std::int64_t chunk_rows;  // R, queries at a time, at most attention_chunk_rows
};

// Forward. qkv (T, 3C): q, k, v side by side. output (T, C); log_sum_exp (NH, T); scores: R x T
// scratch. Without an `output` only log_sum_exp is computed, without a `log_sum_exp` only the
// output, with the same bits.
void attention_forward(const CpuKernels& kernels, const AttentionShape& shape, const float* qkv,
                       float* output, float* log_sum_exp, float* scores);

// Backward. output and output_gradient (T, C); qkv_gradient (T, 3C) is overwritten; scratch: 2 R x
// T.
void attention_backward(const CpuKernels& kernels, const AttentionShape& shape, const float* qkv,
                        const float* output, const float* log_sum_exp, const float* output_gradient,
                        float* qkv_gradient, float* scratch);

}  // namespace spillway
