// Causal attention of one sequence in fp32 on the CPU, over chunks of queries: multi-head, or with
// groups of query heads that share a key/value head (Ainslie et al., "GQA", 2023), over all keys
// before a query or over a sliding window of them, and within a document or regardless of its
// borders.
//
// A chunk of R queries starting at q0 needs the scores of keys 0 .. q0+R-1 only (with a window of W
// keys, from q0-W+1 on), so memory is R x T per head instead of T x T, and the causal half is
// mostly not computed. Backward keeps no probabilities: it rebuilds them from q, k and the saved
// log-sum-exp, as FlashAttention does (Dao et al., 2022).
#pragma once

#include <cstdint>

#include "exec/cpu/kernels_cpu.hpp"

namespace spillway {

struct AttentionShape {
  std::int64_t tokens;      // T
  std::int64_t heads;       // NH, of queries and of the output
  std::int64_t kv_heads;    // NKV, divides NH; query head h reads key/value head h NKV / NH
  std::int64_t head_width;  // D
  std::int64_t window;      // query i sees keys i - window + 1 .. i; 0: keys 0 .. i
  std::int64_t chunk_rows;  // R, queries at a time, at most attention_chunk_rows
  // (T), or null: query i sees no key before starts[i], which never descends.
  const std::int32_t* starts = nullptr;
  // Forward: keys that come before the first query's own, and are rows 0 .. past - 1 of the keys.
  std::int64_t past = 0;

  std::int64_t width() const { return heads * head_width; }        // of queries: A
  std::int64_t kv_width() const { return kv_heads * head_width; }  // of keys, and of values: K
};

// Where queries (T, A), keys (T, K) and values (T, K) lie: in rows of wider tensors.
template <class Element>
struct QueryKeyValue {
  Element *query, *key, *value;
  std::int64_t query_stride, key_stride, value_stride;  // elements from row to row
};

// qkv (T, A + 2 K): queries, keys and values side by side.
template <class Element>
QueryKeyValue<Element> side_by_side(const AttentionShape& shape, Element* qkv) {
  const std::int64_t a = shape.width(), k = shape.kv_width(), stride = a + 2 * k;
  return {qkv, qkv + a, qkv + a + k, stride, stride, stride};
}

// Forward. output (T, A); log_sum_exp (NH, T); scores: R x T scratch. Without an `output` only
// log_sum_exp is computed, without a `log_sum_exp` only the output, with the same bits.
void attention_forward(const CpuKernels& kernels, const AttentionShape& shape,
                       const QueryKeyValue<const float>& in, float* output, float* log_sum_exp,
                       float* scores);

// Backward. output and output_gradient (T, A); qkv_gradient (T, A + 2 K) is overwritten; scratch:
// 2 R x T.
void attention_backward(const CpuKernels& kernels, const AttentionShape& shape,
                        const QueryKeyValue<const float>& in, const float* output,
                        const float* log_sum_exp, const float* output_gradient, float* qkv_gradient,
                        float* scratch);

}  // namespace spillway
