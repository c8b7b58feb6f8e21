#include "tests/cuda/attention/attention_reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace spillway::cuda {

namespace {

constexpr double fine = 0x1p-19;
// Numbers below the smallest normal one may be flushed to zero.
constexpr auto tiny = static_cast<double>(std::numeric_limits<float>::min());

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// One head of one sequence: where its numbers are.
struct Head {
  const AttentionCase& c;
  std::int64_t sequence, head;

  std::int64_t row(std::int64_t token) const { return sequence * c.sizes.tokens + token; }
  // `part`: 0 q, 1 k, 2 v.
  std::size_t qkv(std::int64_t token, std::int64_t part, std::int64_t d) const {
    const AttentionSizes& s = c.sizes;
    const std::int64_t kv_head = head / (s.heads / s.kv_heads);
    const std::int64_t first =
        part == 0 ? head * s.head_size
                  : s.channels() + (part - 1) * s.kv_channels() + kv_head * s.head_size;
    return at(row(token) * s.columns() + first + d);
  }
  std::size_t output(std::int64_t token, std::int64_t d) const {
    return at(row(token) * c.sizes.channels() + head * c.head_size() + d);
  }
  std::size_t statistics(std::int64_t token) const {
    return at(sequence * c.sizes.statistics_stride + head * c.sizes.tokens + token);
  }
};

struct Product {
  double sum = 0, magnitude = 0;
  void add(double a, double b) {
    sum += a * b;
    magnitude += std::abs(a * b);
  }
};

// q k / sqrt(head size).
Product score(const Head& h, const std::vector<double>& qkv, std::int64_t query, std::int64_t key) {
  Product product;
  for (std::int64_t d = 0; d < h.c.head_size(); ++d)
    product.add(qkv[h.qkv(query, 0, d)], qkv[h.qkv(key, 1, d)]);
  const double scale = 1 / std::sqrt(static_cast<double>(h.c.head_size()));
  return {product.sum * scale, product.magnitude * scale};
}

template <class Body>
void for_each_head(const AttentionCase& c, Body body) {
  for (std::int64_t sequence = 0; sequence < c.sizes.sequences; ++sequence)
    for (std::int64_t head = 0; head < c.sizes.heads; ++head) body(Head{c, sequence, head});
}

// A result that is `value`, off by `error` with the variance `variance` before it is rounded.
void set(Expected& expected, std::size_t i, double value, double error, double variance,
         double unit) {
  expected.value[i] = value;
  expected.bound[i] = error + unit * (std::abs(value) + error) + tiny;
  expected.deviation[i] = std::sqrt(variance + unit * unit * value * value / 3) + tiny;
}

}  // namespace

std::string AttentionCase::name() const {
  return std::to_string(sizes.sequences) + " sequences of " + std::to_string(sizes.tokens) +
         " tokens, " + std::to_string(sizes.heads) + " heads of " + std::to_string(head_size()) +
         ", of keys " + std::to_string(sizes.kv_heads) + ", window " +
         std::to_string(sizes.window) + ", statistics " + std::to_string(sizes.statistics_stride) +
         " apart, magnitude " + std::to_string(magnitude) + ", seed " + std::to_string(seed) +
         (starts.empty() ? "" : ", documents, the last from " + std::to_string(starts.back()));
}

AttentionCase attention_case(std::int64_t sequences, std::int64_t tokens, std::int64_t heads,
                             std::int64_t head_size, std::int64_t gap, double magnitude) {
  AttentionCase c;
  c.sizes.sequences = sequences;
  c.sizes.tokens = tokens;
  c.sizes.heads = c.sizes.kv_heads = heads;
  c.sizes.head_size = head_size;
  c.sizes.statistics_stride = heads * tokens + gap;
  c.magnitude = magnitude;
  c.seed = static_cast<unsigned>(sequences + 10 * tokens + 10000 * heads + 100000 * head_size);
  return c;
}

AttentionCase grouped_case(std::int64_t sequences, std::int64_t tokens, std::int64_t kv_heads,
                           std::int64_t group, std::int64_t head_size, std::int64_t window,
                           std::int64_t gap) {
  AttentionCase c = attention_case(sequences, tokens, kv_heads * group, head_size, gap);
  c.sizes.kv_heads = kv_heads;
  c.sizes.window = window;
  return c;
}

AttentionCase with_documents(AttentionCase c, const std::vector<std::int64_t>& lengths) {
  std::size_t next = 0;
  c.starts.clear();
  for (std::int64_t sequence = 0; sequence < c.sizes.sequences; ++sequence) {
    for (std::int64_t start = 0; start < c.sizes.tokens;) {
      const std::int64_t end = std::min(start + lengths[next++ % lengths.size()], c.sizes.tokens);
      c.starts.insert(c.starts.end(), at(end - start), static_cast<std::int32_t>(start));
      c.ends.insert(c.ends.end(), at(end - start), static_cast<std::int32_t>(end));
      start = end;
    }
  }
  return c;
}

ForwardExpected attention_forward_expected(const AttentionCase& c, const std::vector<double>& qkv,
                                           double unit) {
  ForwardExpected expected{Expected(at(c.rows() * c.sizes.channels())),
                           Expected(at(c.statistics()))};
  std::fill(expected.log_sum_exp.bound.begin(), expected.log_sum_exp.bound.end(), -1.0);
  for_each_head(c, [&](const Head& h) {
    for (std::int64_t query = 0; query < c.sizes.tokens; ++query) {
      double most = -std::numeric_limits<double>::infinity(), magnitude = 1, sum = 0;
      std::vector<double> p(at(query + 1), most);
      for (std::int64_t key = c.first_key(h.sequence, query); key <= query; ++key) {
        const Product s = score(h, qkv, query, key);
        p[at(key)] = s.sum;
        most = std::max(most, s.sum);
        magnitude = std::max(magnitude, s.magnitude);
      }
      for (double& value : p) sum += value = std::exp(value - most);
      const std::size_t i = h.statistics(query);
      const double log_sum_exp = most + std::log(sum);
      expected.log_sum_exp.value[i] = log_sum_exp;
      expected.log_sum_exp.bound[i] = fine * magnitude + 0x1p-23 * std::abs(log_sum_exp);
      for (std::int64_t d = 0; d < c.head_size(); ++d) {
        Product o;
        double squares = 0;
        for (std::int64_t key = c.first_key(h.sequence, query); key <= query; ++key) {
          const double v = qkv[h.qkv(key, 2, d)], probability = p[at(key)] / sum;
          o.add(probability, v);
          squares += probability * probability * v * v;
        }
        const double off = fine * magnitude;
        set(expected.output, h.output(query, d), o.sum, (unit + 2 * off + fine) * o.magnitude,
            unit * unit * squares / 3 + off * off * o.magnitude * o.magnitude, unit);
      }
    }
  });
  return expected;
}

Expected attention_backward_expected(const AttentionCase& c, const std::vector<double>& qkv,
                                     const std::vector<double>& output,
                                     const std::vector<float>& log_sum_exp,
                                     const std::vector<double>& output_gradient, double unit) {
  Expected expected(qkv.size());
  std::vector<double> value(qkv.size()), error(qkv.size()), variance(qkv.size());
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_size()));
  for_each_head(c, [&](const Head& h) {
    for (std::int64_t query = 0; query < c.sizes.tokens; ++query) {
      Product dots;
      for (std::int64_t d = 0; d < c.head_size(); ++d)
        dots.add(output_gradient[h.output(query, d)], output[h.output(query, d)]);
      const auto saved = static_cast<double>(log_sum_exp[h.statistics(query)]);
      for (std::int64_t key = c.first_key(h.sequence, query); key <= query; ++key) {
        const Product s = score(h, qkv, query, key);
        const double p = std::exp(s.sum - saved);
        // Relative; and absolute, of p.
        const double p_error = fine * (s.magnitude + std::abs(saved) + 1);
        const double p_fine = p_error * p + tiny;
        Product dp;
        for (std::int64_t d = 0; d < c.head_size(); ++d)
          dp.add(output_gradient[h.output(query, d)], qkv[h.qkv(key, 2, d)]);
        const double ds = p * (dp.sum - dots.sum);
        const double ds_fine = p_fine * std::abs(dp.sum - dots.sum) +
                               (fine * p + tiny) * (dp.magnitude + dots.magnitude);
        // A term of a sum: weight (rounded, and off by weight_fine) times factor.
        const auto add = [&](std::size_t i, double weight, double weight_fine, double factor) {
          const double rounding = unit * weight * factor;
          value[i] += weight * factor;
          error[i] +=
              (unit * (std::abs(weight) + weight_fine) + weight_fine + fine * std::abs(weight)) *
              std::abs(factor);
          variance[i] += rounding * rounding / 3 +
                         weight_fine * std::abs(factor) * weight_fine * std::abs(factor);
        };
        for (std::int64_t d = 0; d < c.head_size(); ++d) {
          add(h.qkv(query, 0, d), ds, ds_fine, qkv[h.qkv(key, 1, d)] * scale);
          add(h.qkv(key, 1, d), ds, ds_fine, qkv[h.qkv(query, 0, d)] * scale);
          add(h.qkv(key, 2, d), p, p_fine, output_gradient[h.output(query, d)]);
        }
      }
    }
  });
  for (std::size_t i = 0; i < value.size(); ++i)
    set(expected, i, value[i], error[i], variance[i], unit);
  return expected;
}

}  // namespace spillway::cuda
