// Causal attention in tiles with an online softmax: no T x T storage, forward and backward,
// deterministic.
//
// qkv (sequences, T, 3C): q, k and v of a token one after the other, heads within each. The scores
// are scaled by 1 / sqrt(head size). bf16 goes through the tensor cores (mma.sync), with fp32 sums;
// float through plain kernels, which are also what the others are checked against. The head size is
// a multiple of 8 up to 128; 64 and 128 are the fast ones.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "exec/cuda/kernels/bf16.hpp"

namespace spillway::cuda {

// Which instructions multiply bf16: those every GPU from 8.0 on has, or Hopper's own, which are for
// compute capability 9.0 and heads of 64 and 128 (for others this means the former).
// attention_choice.hpp says which to take. They differ in the order of sums: either way a result
// has the same bits every time, but not those of the other way.
enum class AttentionKernels { mma_sync, wgmma };

struct AttentionSizes {
  std::int64_t sequences = 0, tokens = 0, channels = 0, heads = 0;
  // log-sum-exp of (sequence, head, query) at sequence * statistics_stride + head * tokens + query.
  std::int64_t statistics_stride = 0;
  AttentionKernels kernels = AttentionKernels::mma_sync;
};

// Throws InputError when the head size is none it computes.
void require_attention_head(std::int64_t channels, std::int64_t heads);

// output (sequences, T, C), log_sum_exp: either may be null, and is then not computed; the other
// has the same bits.
template <class Element>
void attention_forward(const AttentionSizes& sizes, const Element* qkv, Element* output,
                       float* log_sum_exp, cudaStream_t stream);

// qkv_gradient (sequences, T, 3C) from output_gradient (sequences, T, C). `dots`: room for
// sequences x heads x T floats.
template <class Element>
void attention_backward(const AttentionSizes& sizes, const Element* qkv, const Element* output,
                        const float* log_sum_exp, const Element* output_gradient,
                        Element* qkv_gradient, float* dots, cudaStream_t stream);

}  // namespace spillway::cuda
