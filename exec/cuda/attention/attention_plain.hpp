// Causal attention on the ordinary arithmetic units, with the interface of attention.hpp: what
// attention of float is, and, for bf16, what the tensor cores are checked against.
//
// Arithmetic is fp32 throughout; only what is read and written is rounded to Element. The
// restrictions, the meaning of the arguments and of null are those of attention_forward() and
// attention_backward(). Element is float or bf16.
#pragma once

#include "exec/cuda/attention/attention.hpp"

namespace spillway::cuda {

template <class Element>
void attention_forward_plain(const AttentionSizes& sizes, const AttentionInput<Element>& input,
                             Element* output, float* log_sum_exp, cudaStream_t stream);

template <class Element>
void attention_backward_plain(const AttentionSizes& sizes, const AttentionInput<Element>& input,
                              const Element* output, const float* log_sum_exp,
                              const Element* output_gradient, Element* qkv_gradient, float* dots,
                              cudaStream_t stream);

}  // namespace spillway::cuda
