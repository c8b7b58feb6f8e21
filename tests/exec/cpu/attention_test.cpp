// Attention over chunks of queries against the textbook formula in double, forward and backward.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "exec/cpu/attention.hpp"

using namespace spillway;

namespace {

std::vector<float> random_floats(std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& x : values) x = normal(random);
  return values;
}

// A row-major (rows, columns) matrix in double.
struct Matrix {
  std::int64_t columns;
  std::vector<double> values;
  Matrix(std::int64_t rows, std::int64_t width)
      : columns(width), values(static_cast<std::size_t>(rows * width)) {}
  double& operator()(std::int64_t row, std::int64_t column) {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
};

struct Expected {
  Matrix output, qkv_gradient, log_sum_exp;
};

// p = softmax of q k / sqrt(size) over the keys that a query sees; o = p v; and the gradients of
// sum(o * output_gradient).
class Textbook {
 public:
  Textbook(const AttentionShape& shape, const std::vector<float>& qkv,
           const std::vector<float>& output_gradient)
      : s_(shape),
        qkv_(qkv),
        output_gradient_(output_gradient),
        width_(shape.width() + 2 * shape.kv_width()),
        e_{Matrix(s_.tokens, s_.width()), Matrix(s_.tokens, width_), Matrix(s_.heads, s_.tokens)} {
    for (std::int64_t head = 0; head < s_.heads; ++head)
      for (std::int64_t i = 0; i < s_.tokens; ++i) query(head, i);
  }
  const Expected& expected() const { return e_; }

 private:
  double in(std::int64_t token, std::int64_t column) const {
    return static_cast<double>(qkv_[static_cast<std::size_t>(token * width_ + column)]);
  }
  void query(std::int64_t head, std::int64_t i) {
    const std::int64_t size = s_.head_width, kv_head = head / (s_.heads / s_.kv_heads);
    const std::int64_t q = head * size, k = s_.width() + kv_head * size, v = k + s_.kv_width();
    std::int64_t first = s_.window > 0 ? std::max<std::int64_t>(0, i - s_.window + 1) : 0;
    if (s_.starts != nullptr) first = std::max<std::int64_t>(first, s_.starts[i]);
    const double scale = 1 / std::sqrt(static_cast<double>(size));
    const auto dout = [&](std::int64_t d) {
      return static_cast<double>(
          output_gradient_[static_cast<std::size_t>(i * s_.width() + q + d)]);
    };
    std::vector<double> p, dp;
    double sum = 0, dot = 0;
    for (std::int64_t j = first; j <= i; ++j) {
      double score = 0;
      for (std::int64_t d = 0; d < size; ++d) score += in(i, q + d) * in(j, k + d);
      p.push_back(std::exp(score * scale));
      sum += p.back();
    }
    e_.log_sum_exp(head, i) = std::log(sum);
    for (std::int64_t j = first; j <= i; ++j) {
      double& pj = p[static_cast<std::size_t>(j - first)];
      pj /= sum;
      dp.push_back(0);
      for (std::int64_t d = 0; d < size; ++d) {
        e_.output(i, q + d) += pj * in(j, v + d);
        e_.qkv_gradient(j, v + d) += pj * dout(d);
        dp.back() += dout(d) * in(j, v + d);
      }
      dot += pj * dp.back();
    }
    for (std::int64_t j = first; j <= i; ++j) {
      const auto index = static_cast<std::size_t>(j - first);
      const double ds = p[index] * (dp[index] - dot) * scale;
      for (std::int64_t d = 0; d < size; ++d) {
        e_.qkv_gradient(i, q + d) += ds * in(j, k + d);
        e_.qkv_gradient(j, k + d) += ds * in(i, q + d);
      }
    }
  }

  AttentionShape s_;
  const std::vector<float>&qkv_, &output_gradient_;
  std::int64_t width_;
  Expected e_;
};

double worst(const std::vector<float>& ours, const std::vector<double>& exact) {
  double error = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(ours[i]) - exact[i]);
    if (std::isnan(difference)) return difference;
    error = std::max(error, difference);
  }
  return error;
}

// Every quantity of attention is of order one, times up to 3 heads of a group; error below 2e-5.
void check_textbook(const AttentionShape& shape, std::uint64_t seed) {
  const std::int64_t t = shape.tokens, width = shape.width() + 2 * shape.kv_width();
  INFO("T " << t << " heads " << shape.heads << " of " << shape.head_width << " sharing "
            << shape.kv_heads << " window " << shape.window << " chunk " << shape.chunk_rows);
  const auto qkv = random_floats(t * width, seed),
             gradient = random_floats(t * shape.width(), seed + 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> output(gradient.size(), nan), qkv_gradient(qkv.size(), nan);
  std::vector<float> lse(static_cast<std::size_t>(shape.heads * t), nan), lse_alone = lse;
  std::vector<float> scratch(static_cast<std::size_t>(2 * shape.chunk_rows * t), nan);
  const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
  const auto in = side_by_side(shape, qkv.data());
  attention_forward(kernels, shape, in, output.data(), lse.data(), scratch.data());
  attention_forward(kernels, shape, in, nullptr, lse_alone.data(), scratch.data());
  attention_backward(kernels, shape, in, output.data(), lse.data(), gradient.data(),
                     qkv_gradient.data(), scratch.data());
  const Textbook textbook(shape, qkv, gradient);
  const Expected& expected = textbook.expected();
  CHECK(worst(output, expected.output.values) < 2e-5);
  CHECK(worst(lse, expected.log_sum_exp.values) < 2e-5);
  CHECK(worst(qkv_gradient, expected.qkv_gradient.values) < 2e-5);
  CHECK(lse_alone == lse);
}

// (tokens): documents of random lengths up to `longest`.
std::vector<std::int32_t> random_starts(std::int64_t tokens, std::int64_t longest,
                                        std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> starts;
  while (static_cast<std::int64_t>(starts.size()) < tokens) {
    const auto start = static_cast<std::int32_t>(starts.size());
    const auto left = static_cast<std::uint64_t>(tokens - start);
    const std::uint64_t length = random() % static_cast<std::uint64_t>(longest) + 1;
    starts.resize(starts.size() + std::min(length, left), start);
  }
  return starts;
}

}  // namespace

TEST_CASE("Attention equals the textbook formula") {
  // One, two and many chunks of queries; heads that share keys and values; windows shorter than a
  // chunk, longer than one, and longer than the sequence.
  const std::uint64_t seed = 31;
  INFO("seed " << seed);
  for (const AttentionShape shape :
       {AttentionShape{1, 3, 3, 8, 0, 1}, AttentionShape{5, 3, 3, 8, 0, 5},
        AttentionShape{70, 3, 3, 8, 0, 64}, AttentionShape{128, 3, 3, 8, 0, 64},
        AttentionShape{67, 3, 3, 8, 0, 16}, AttentionShape{70, 6, 2, 10, 0, 64},
        AttentionShape{70, 4, 1, 6, 5, 64}, AttentionShape{131, 4, 2, 16, 64, 64},
        AttentionShape{131, 2, 2, 7, 90, 32}, AttentionShape{40, 2, 1, 12, 1, 16},
        AttentionShape{40, 2, 1, 12, 41, 16}}) {
    check_textbook(shape, seed);
  }
}

TEST_CASE("Attention keeps to documents") {
  // Documents of a token each, of random lengths, of a chunk's, and one alone; with and without a
  // window.
  const std::uint64_t seed = 32;
  INFO("seed " << seed);
  for (AttentionShape shape :
       {AttentionShape{70, 3, 3, 8, 0, 64}, AttentionShape{131, 4, 2, 16, 0, 64},
        AttentionShape{131, 2, 2, 7, 9, 32}, AttentionShape{40, 2, 1, 12, 41, 16}}) {
    for (const std::int64_t longest : {1, 5, 50}) {
      const auto starts = random_starts(shape.tokens, longest, seed);
      shape.starts = starts.data();
      INFO("documents of up to " << longest);
      check_textbook(shape, seed);
    }
    std::vector<std::int32_t> starts(static_cast<std::size_t>(shape.tokens));
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const auto token = static_cast<std::int32_t>(i);
      starts[i] = token - token % static_cast<std::int32_t>(shape.chunk_rows);
    }
    shape.starts = starts.data();
    check_textbook(shape, seed);
    std::fill(starts.begin(), starts.end(), 0);
    check_textbook(shape, seed);
  }
}

TEST_CASE("Queries and keys may lie apart from the values") {
  const AttentionShape shape{70, 4, 2, 6, 20, 64};
  const std::int64_t t = shape.tokens, a = shape.width(), k = shape.kv_width();
  const auto qkv = random_floats(t * (a + 2 * k), 5), gradient = random_floats(t * a, 6);
  std::vector<float> apart;  // (T, A + K)
  for (std::int64_t row = 0; row < t; ++row) {
    const auto begin = qkv.begin() + row * (a + 2 * k);
    apart.insert(apart.end(), begin, begin + a + k);
  }
  const auto together = side_by_side(shape, qkv.data());
  auto split = together;
  split.query = apart.data();
  split.key = apart.data() + a;
  split.query_stride = split.key_stride = a + k;

  const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
  std::vector<float> scratch(static_cast<std::size_t>(2 * shape.chunk_rows * t));
  const auto everything = [&](const QueryKeyValue<const float>& in) {
    std::vector<float> output(gradient.size()), lse(static_cast<std::size_t>(shape.heads * t)),
        qkv_gradient(qkv.size());
    attention_forward(kernels, shape, in, output.data(), lse.data(), scratch.data());
    attention_backward(kernels, shape, in, output.data(), lse.data(), gradient.data(),
                       qkv_gradient.data(), scratch.data());
    output.insert(output.end(), lse.begin(), lse.end());
    output.insert(output.end(), qkv_gradient.begin(), qkv_gradient.end());
    return output;
  };
  CHECK(everything(split) == everything(together));
}
