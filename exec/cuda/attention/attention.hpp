// Causal attention in tiles with an online softmax: no T x T storage, forward and backward,
// deterministic.
//
// A = heads x head size, K = kv_heads x head size. The scores are scaled by 1 / sqrt(head size).
// bf16 goes through the tensor cores (mma.sync), with fp32 sums; float through plain kernels, which
// are also what the others are checked against. The head size is a multiple of 8 up to 128; 64 and
// 128 are the fast ones.
//
// Grouped queries: heads / kv_heads consecutive heads of queries share a head of keys and values;
// the gradients of keys and values are summed over them in their order. Sliding window: query i
// sees the keys i - window + 1 .. i, and tiles that no query of a block sees are neither read nor
// computed. Documents: a query sees keys of its own alone, and of other documents' tiles the same
// is true.
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

// Of documents, (sequences, T) each, or null where there are none. Query i sees no key before
// starts[i], and key j is seen by no query from ends[j] on. Neither descends within a sequence, and
// i is in the document [starts[i], ends[i]).
struct AttentionBorders {
  const std::int32_t *starts = nullptr, *ends = nullptr;
};

struct AttentionSizes {
  std::int64_t sequences = 0, tokens = 0, heads = 0, kv_heads = 0, head_size = 0;
  // log-sum-exp of (sequence, head, query) at sequence * statistics_stride + head * tokens + query.
  std::int64_t statistics_stride = 0;
  AttentionKernels kernels = AttentionKernels::mma_sync;
  std::int64_t window = 0;  // keys that a query sees, its own included; 0: all up to its own
  AttentionBorders borders;

  std::int64_t channels() const { return heads * head_size; }              // A
  std::int64_t kv_channels() const { return kv_heads * head_size; }        // K
  std::int64_t columns() const { return channels() + 2 * kv_channels(); }  // of q, k and v
  bool has_window() const { return window > 0 && window < tokens; }
};

// Where q, k and v of (sequences, T) tokens lie: in rows at `qk` q (A) and then k (K), in rows at
// `v` v (K), heads within each.
template <class Element>
struct AttentionInput {
  const Element *qk = nullptr, *v = nullptr;
  std::int64_t qk_stride = 0, v_stride = 0;  // elements from row to row
};
// Of rows (A + 2K) of q, k and v.
template <class Element>
AttentionInput<Element> side_by_side(const AttentionSizes& sizes, const Element* qkv) {
  return {qkv, qkv + sizes.channels() + sizes.kv_channels(), sizes.columns(), sizes.columns()};
}

// Throws InputError when the head size, channels / heads, is none it computes.
void require_attention_head(std::int64_t channels, std::int64_t heads);

// output (sequences, T, A), log_sum_exp: either may be null, and is then not computed; the other
// has the same bits.
template <class Element>
void attention_forward(const AttentionSizes& sizes, const AttentionInput<Element>& input,
                       Element* output, float* log_sum_exp, cudaStream_t stream);

// qkv_gradient (sequences, T, A + 2K) from output_gradient (sequences, T, A). `dots`: room for
// sequences x heads x T floats.
template <class Element>
void attention_backward(const AttentionSizes& sizes, const AttentionInput<Element>& input,
                        const Element* output, const float* log_sum_exp,
                        const Element* output_gradient, Element* qkv_gradient, float* dots,
                        cudaStream_t stream);

}  // namespace spillway::cuda
