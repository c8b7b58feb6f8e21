// The two large parts of attention's backward pass on tensor cores; attention_backward.cu starts
// them. Both read `dots` and the log-sum-exp; neither reads what the other writes.
#pragma once

#include "exec/cuda/attention/attention_place.hpp"

namespace spillway::cuda {

// The k and v columns of qkv_gradient.
void attention_backward_keys(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                             cudaStream_t stream);
// Its q columns.
void attention_backward_queries(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                                cudaStream_t stream);

}  // namespace spillway::cuda
