// Attention of bf16 with Hopper's own matrix instructions: the interface of attention.hpp, for
// heads of 64 and 128 on compute capability 9.0, grouped queries among them, but no sliding window
// and no borders of documents.
// attention_choice.hpp says when it is used.
#pragma once

#include "exec/cuda/attention/attention_backward.hpp"
#include "exec/cuda/attention/attention_choice.hpp"

namespace spillway::cuda {

inline bool hopper_computes(const AttentionSizes& sizes) {
  return kernels_for(sizes) == AttentionKernels::wgmma;
}
// Of the gradients of keys and values: those of heads of 128 that are General (attention_place.hpp)
// would not fit into registers; the kernel for every GPU computes them.
inline bool hopper_computes_keys(const AttentionSizes& sizes, const AttentionInput<bf16>& input) {
  return hopper_computes(sizes) && (sizes.head_size == 64 || !needs_general(sizes, input));
}

// `output` or `log_sum_exp` may be null. There is at least one sequence and one token.
void attention_forward_hopper(const AttentionSizes& sizes, const AttentionInput<bf16>& input,
                              bf16* output, float* log_sum_exp, cudaStream_t stream);

// The k and v columns of qkv_gradient; its q columns. As in attention_backward.hpp.
void attention_keys_hopper(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                           cudaStream_t stream);
void attention_queries_hopper(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                              cudaStream_t stream);

}  // namespace spillway::cuda
