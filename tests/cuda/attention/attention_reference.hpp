// Causal attention and its gradients in fp64, over the numbers the kernels are given, with what
// their results may be off by.
//
// Errors have two sources. Rounding to the element type, relative to what is rounded by at most
// `unit` (bf16: 2^-8): of probabilities p and of gradients of scores ds where they enter a product,
// and of results. And fp32 arithmetic, `fine` = 2^-19 relative to the sums of absolute values: of
// scores, which as an exponent become a relative error of p, and of sums. The latter leaves room
// for tensor cores, which truncate where they align the products of a sum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "exec/cuda/attention/attention.hpp"

namespace spillway::cuda {

struct AttentionCase {
  AttentionSizes sizes;
  double magnitude = 1.0;  // of q, k, v and the output's gradient
  unsigned seed = 0;
  // Of documents, (sequences, tokens) each; empty: there are no borders. Not in `sizes`, which
  // would have them on the device.
  std::vector<std::int32_t> starts = {}, ends = {};

  std::int64_t head_size() const { return sizes.head_size; }
  // The first key that a query sees.
  std::int64_t first_key(std::int64_t sequence, std::int64_t query) const {
    const std::int64_t first =
        sizes.window > 0 ? std::max<std::int64_t>(0, query - sizes.window + 1) : 0;
    if (starts.empty()) return first;
    return std::max<std::int64_t>(
        first, starts[static_cast<std::size_t>(sequence * sizes.tokens + query)]);
  }
  std::int64_t rows() const { return sizes.sequences * sizes.tokens; }
  std::int64_t statistics() const { return sizes.sequences * sizes.statistics_stride; }
  std::string name() const;
};

// statistics_stride is heads x tokens + gap.
AttentionCase attention_case(std::int64_t sequences, std::int64_t tokens, std::int64_t heads,
                             std::int64_t head_size, std::int64_t gap = 0, double magnitude = 1.0);
// The same with `group` heads of queries to each of `kv_heads`, and a sliding window.
AttentionCase grouped_case(std::int64_t sequences, std::int64_t tokens, std::int64_t kv_heads,
                           std::int64_t group, std::int64_t head_size, std::int64_t window,
                           std::int64_t gap = 0);

// The same with documents of these lengths in every sequence, again and again.
AttentionCase with_documents(AttentionCase c, const std::vector<std::int64_t>& lengths);

// A result: what it is, by how much it may be off, and the standard deviation of what it is off by
// if roundings are independent and uniform.
struct Expected {
  std::vector<double> value, bound, deviation;
  explicit Expected(std::size_t n) : value(n), bound(n), deviation(n) {}
};

struct ForwardExpected {
  Expected output;       // (rows, A)
  Expected log_sum_exp;  // as in statistics; where none belongs, value 0 and bound -1
};
ForwardExpected attention_forward_expected(const AttentionCase& c, const std::vector<double>& qkv,
                                           double unit);

// qkv_gradient (rows, A + 2K), from `output` and `log_sum_exp` as the kernels get them.
Expected attention_backward_expected(const AttentionCase& c, const std::vector<double>& qkv,
                                     const std::vector<double>& output,
                                     const std::vector<float>& log_sum_exp,
                                     const std::vector<double>& output_gradient, double unit);

}  // namespace spillway::cuda
