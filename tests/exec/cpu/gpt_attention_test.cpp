// Attention over chunks of queries against the textbook formula in double, forward and backward.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "exec/cpu/gpt_cpu_attention.hpp"
#include "policies/model/units.hpp"

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

// p = softmax over keys 0 .. i of q k / sqrt(size); o = p v; and the gradients of sum(o *
// output_gradient).
Expected textbook(const AttentionShape& s, const std::vector<float>& qkv,
                  const std::vector<float>& output_gradient) {
  const std::int64_t c = s.channels, size = c / s.heads;
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  Expected e{Matrix(s.tokens, c), Matrix(s.tokens, 3 * c), Matrix(s.heads, s.tokens)};
  const auto in = [&](std::int64_t token, std::int64_t column) {
    return static_cast<double>(qkv[static_cast<std::size_t>(token * 3 * c + column)]);
  };
  const auto dout = [&](std::int64_t token, std::int64_t column) {
    return static_cast<double>(output_gradient[static_cast<std::size_t>(token * c + column)]);
  };
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const std::int64_t q = h * size, k = c + q, v = 2 * c + q;
    for (std::int64_t i = 0; i < s.tokens; ++i) {
      std::vector<double> p, dp;
      double sum = 0, dot = 0;
      for (std::int64_t j = 0; j <= i; ++j) {
        double score = 0;
        for (std::int64_t d = 0; d < size; ++d) score += in(i, q + d) * in(j, k + d);
        p.push_back(std::exp(score * scale));
        sum += p.back();
      }
      e.log_sum_exp(h, i) = std::log(sum);
      for (std::int64_t j = 0; j <= i; ++j) {
        double& pj = p[static_cast<std::size_t>(j)];
        pj /= sum;
        dp.push_back(0);
        for (std::int64_t d = 0; d < size; ++d) {
          e.output(i, q + d) += pj * in(j, v + d);
          e.qkv_gradient(j, v + d) += pj * dout(i, q + d);
          dp.back() += dout(i, q + d) * in(j, v + d);
        }
        dot += pj * dp.back();
      }
      for (std::int64_t j = 0; j <= i; ++j) {
        const auto index = static_cast<std::size_t>(j);
        const double ds = p[index] * (dp[index] - dot) * scale;
        for (std::int64_t d = 0; d < size; ++d) {
          e.qkv_gradient(i, q + d) += ds * in(j, k + d);
          e.qkv_gradient(j, k + d) += ds * in(i, q + d);
        }
      }
    }
  }
  return e;
}

double worst(const std::vector<float>& ours, const std::vector<double>& exact) {
  double error = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(ours[i]) - exact[i]);
    if (std::isnan(difference)) return difference;
    error = std::max(error, difference);
  }
  return error;
}

}  // namespace

TEST_CASE("Attention equals the textbook formula for one, two and many chunks of queries") {
  // All quantities are of order one; error below 1e-5.
  const std::uint64_t seed = 31;
  INFO("seed " << seed);
  struct Case {
    std::int64_t tokens, chunk;
  };
  for (const auto [tokens, chunk] :
       {Case{1, 1}, Case{5, 5}, Case{70, 64}, Case{128, 64}, Case{67, 16}}) {
    INFO("T " << tokens << " chunk " << chunk);
    const AttentionShape shape{tokens, 24, 3, chunk};
    const auto qkv = random_floats(tokens * 72, seed),
               gradient = random_floats(tokens * 24, seed + 1);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> output(gradient.size(), nan), qkv_gradient(qkv.size(), nan);
    std::vector<float> lse(static_cast<std::size_t>(3 * tokens), nan), lse_alone = lse;
    std::vector<float> scratch(static_cast<std::size_t>(2 * chunk * tokens), nan);
    const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
    attention_forward(kernels, shape, qkv.data(), output.data(), lse.data(), scratch.data());
    attention_forward(kernels, shape, qkv.data(), nullptr, lse_alone.data(), scratch.data());
    attention_backward(kernels, shape, qkv.data(), output.data(), lse.data(), gradient.data(),
                       qkv_gradient.data(), scratch.data());
    const Expected expected = textbook(shape, qkv, gradient);
    CHECK(worst(output, expected.output.values) < 1e-5);
    CHECK(worst(lse, expected.log_sum_exp.values) < 1e-5);
    CHECK(worst(qkv_gradient, expected.qkv_gradient.values) < 1e-5);
    CHECK(lse_alone == lse);
  }
}
