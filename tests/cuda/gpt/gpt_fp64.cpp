#include "tests/cuda/gpt/gpt_fp64.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "exec/cpu/gpt_offsets.hpp"

namespace spillway {

namespace {

using Doubles = std::vector<double>;

// A matrix (rows, columns), row after row.
struct Matrix {
  std::size_t rows = 0, columns = 0;
  Doubles values;

  Matrix(std::size_t r, std::size_t c) : rows(r), columns(c), values(r * c) {}
  double* operator[](std::size_t row) { return values.data() + row * columns; }
  const double* operator[](std::size_t row) const { return values.data() + row * columns; }
  void add(const Matrix& other) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += other.values[i];
  }
};

// y = x w^T + b, w (out, in); no bias where b is null.
Matrix linear(const Matrix& x, const double* w, const double* b, std::size_t out) {
  Matrix y(x.rows, out);
  for (std::size_t row = 0; row < x.rows; ++row) {
    for (std::size_t o = 0; o < out; ++o) {
      double sum = b != nullptr ? b[o] : 0;
      for (std::size_t i = 0; i < x.columns; ++i) sum += x[row][i] * w[o * x.columns + i];
      y[row][o] = sum;
    }
  }
  return y;
}

// dx = dy w; dw += dy^T x; db += the sum of dy over rows.
Matrix linear_backward(const Matrix& dy, const Matrix& x, const double* w, double* dw, double* db) {
  Matrix dx(x.rows, x.columns);
  for (std::size_t row = 0; row < x.rows; ++row) {
    for (std::size_t o = 0; o < dy.columns; ++o) {
      const double d = dy[row][o];
      if (db != nullptr) db[o] += d;
      for (std::size_t i = 0; i < x.columns; ++i) {
        dx[row][i] += d * w[o * x.columns + i];
        dw[o * x.columns + i] += d * x[row][i];
      }
    }
  }
  return dx;
}

struct Moments {
  double mean = 0, rstd = 0;
};
Moments moments(const double* x, std::size_t columns) {
  const auto count = static_cast<double>(columns);
  Moments m;
  double squares = 0;
  for (std::size_t i = 0; i < columns; ++i) m.mean += x[i] / count;
  for (std::size_t i = 0; i < columns; ++i) squares += (x[i] - m.mean) * (x[i] - m.mean) / count;
  m.rstd = 1 / std::sqrt(squares + 1e-5);
  return m;
}

Matrix norm(const Matrix& x, const double* weight, const double* bias) {
  Matrix y(x.rows, x.columns);
  for (std::size_t row = 0; row < x.rows; ++row) {
    const Moments m = moments(x[row], x.columns);
    for (std::size_t i = 0; i < x.columns; ++i)
      y[row][i] = (x[row][i] - m.mean) * m.rstd * weight[i] + bias[i];
  }
  return y;
}

// xhat = (x - mean) rstd, g = dy w: dx = rstd (g - mean(g) - xhat mean(g xhat)).
Matrix norm_backward(const Matrix& dy, const Matrix& x, const double* weight, double* dw,
                     double* db) {
  Matrix dx(x.rows, x.columns);
  const auto count = static_cast<double>(x.columns);
  for (std::size_t row = 0; row < x.rows; ++row) {
    const Moments m = moments(x[row], x.columns);
    const auto xhat = [&](std::size_t i) { return (x[row][i] - m.mean) * m.rstd; };
    double mean_g = 0, mean_gx = 0;
    for (std::size_t i = 0; i < x.columns; ++i) {
      const double g = dy[row][i] * weight[i];
      mean_g += g / count;
      mean_gx += g * xhat(i) / count;
      dw[i] += dy[row][i] * xhat(i);
      db[i] += dy[row][i];
    }
    for (std::size_t i = 0; i < x.columns; ++i)
      dx[row][i] = m.rstd * (dy[row][i] * weight[i] - mean_g - xhat(i) * mean_gx);
  }
  return dx;
}

// y = x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3).
const double gelu_root = std::sqrt(2 / std::acos(-1.0));
double gelu(double x) { return 0.5 * x * (1 + std::tanh(gelu_root * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double t = std::tanh(gelu_root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_root * (1 + 3 * 0.044715 * x * x);
}

// Causal attention: a query sees the tokens of its sequence up to its own.
class Attention {
 public:
  Attention(const Problem& problem, const Matrix& qkv)
      : t_(static_cast<std::size_t>(problem.workload.sequence)),
        c_(static_cast<std::size_t>(problem.model.hidden)),
        heads_(static_cast<std::size_t>(problem.model.heads)),
        size_(c_ / heads_),
        scale_(1 / std::sqrt(static_cast<double>(size_))),
        qkv_(qkv) {}

  Matrix forward() const {
    Matrix output(qkv_.rows, c_);
    each_query([&](std::size_t row, std::size_t first, std::size_t head) {
      const Doubles p = probabilities(row, first, head);
      for (std::size_t key = first; key <= row; ++key)
        for (std::size_t i = 0; i < size_; ++i)
          output[row][head * size_ + i] += p[key - first] * value(key, head)[i];
    });
    return output;
  }

  // With D = sum of p (dO . v) over keys: dv = p dO, ds = p (dO . v - D), dq = scale ds k, dk =
  // scale ds q.
  Matrix backward(const Matrix& output_gradient) const {
    Matrix dqkv(qkv_.rows, 3 * c_);
    each_query([&](std::size_t row, std::size_t first, std::size_t head) {
      const Doubles p = probabilities(row, first, head);
      const double* const d_out = output_gradient[row] + head * size_;
      Doubles dp(p.size());
      double mean = 0;
      for (std::size_t key = first; key <= row; ++key) {
        dp[key - first] = dot(d_out, value(key, head));
        mean += p[key - first] * dp[key - first];
      }
      for (std::size_t key = first; key <= row; ++key) {
        const double ds = p[key - first] * (dp[key - first] - mean) * scale_;
        for (std::size_t i = 0; i < size_; ++i) {
          const std::size_t at = head * size_ + i;
          dqkv[row][at] += ds * qkv_[key][c_ + at];
          dqkv[key][c_ + at] += ds * qkv_[row][at];
          dqkv[key][2 * c_ + at] += p[key - first] * d_out[i];
        }
      }
    });
    return dqkv;
  }

 private:
  // call(row of the query, first row of its sequence, head)
  template <class Call>
  void each_query(const Call& call) const {
    for (std::size_t row = 0; row < qkv_.rows; ++row)
      for (std::size_t head = 0; head < heads_; ++head) call(row, row / t_ * t_, head);
  }
  double dot(const double* a, const double* b) const {
    double sum = 0;
    for (std::size_t i = 0; i < size_; ++i) sum += a[i] * b[i];
    return sum;
  }
  const double* value(std::size_t row, std::size_t head) const {
    return qkv_[row] + 2 * c_ + head * size_;
  }
  Doubles probabilities(std::size_t row, std::size_t first, std::size_t head) const {
    Doubles p;
    double largest = -INFINITY, sum = 0;
    for (std::size_t key = first; key <= row; ++key) {
      p.push_back(scale_ * dot(qkv_[row] + head * size_, qkv_[key] + c_ + head * size_));
      largest = std::max(largest, p.back());
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    for (double& x : p) x /= sum;
    return p;
  }

  std::size_t t_, c_, heads_, size_;
  double scale_;
  const Matrix& qkv_;
};

// What forward leaves of a block for backward.
struct Block {
  Matrix input, ln1, qkv, attention, residual, ln2, fc, gelu;
};

class Gpt {
 public:
  Gpt(const Problem& problem, const Units& parameters)
      : problem_(problem),
        layer_(layer_offsets(problem.model)),
        embedding_(embedding_offsets(problem.model)),
        c_(static_cast<std::size_t>(problem.model.hidden)) {
    for (const auto& unit : parameters) {
      parameters_.emplace_back(unit.begin(), unit.end());
      step_.gradients.emplace_back(unit.size());
    }
  }

  Fp64Step run(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets) {
    const auto layers = static_cast<std::size_t>(problem_.model.layers);
    Matrix x = embed(tokens);
    std::vector<Block> blocks;
    for (std::size_t layer = 0; layer < layers; ++layer) x = forward(blocks, layer, x);
    Matrix dx = head(x, targets);
    for (std::size_t layer = layers; layer-- > 0;) dx = backward(blocks[layer], layer, dx);
    embed_backward(tokens, dx);
    return std::move(step_);
  }

 private:
  const double* of(std::size_t unit, std::int64_t offset) const {
    return parameters_[unit].data() + offset;
  }
  double* gradient(std::size_t unit, std::int64_t offset) {
    return step_.gradients[unit].data() + offset;
  }
  std::size_t embedding_unit() const { return parameters_.size() - 1; }

  Matrix embed(const std::vector<std::int32_t>& tokens) const {
    Matrix x(tokens.size(), c_);
    const auto t = static_cast<std::size_t>(problem_.workload.sequence);
    const double* const table = of(embedding_unit(), embedding_.token_table);
    const double* const positions = of(embedding_unit(), embedding_.position_table);
    for (std::size_t row = 0; row < x.rows; ++row)
      for (std::size_t i = 0; i < c_; ++i)
        x[row][i] =
            table[static_cast<std::size_t>(tokens[row]) * c_ + i] + positions[row % t * c_ + i];
    return x;
  }
  void embed_backward(const std::vector<std::int32_t>& tokens, const Matrix& dx) {
    const auto t = static_cast<std::size_t>(problem_.workload.sequence);
    double* const table = gradient(embedding_unit(), embedding_.token_table);
    double* const positions = gradient(embedding_unit(), embedding_.position_table);
    for (std::size_t row = 0; row < dx.rows; ++row) {
      for (std::size_t i = 0; i < c_; ++i) {
        table[static_cast<std::size_t>(tokens[row]) * c_ + i] += dx[row][i];
        positions[row % t * c_ + i] += dx[row][i];
      }
    }
  }

  Matrix forward(std::vector<Block>& blocks, std::size_t unit, const Matrix& x) const {
    const auto f = static_cast<std::size_t>(problem_.model.ffn);
    const auto at = [&](std::int64_t offset) { return of(unit, offset); };
    const Matrix ln1 = norm(x, at(layer_.norm1_weight), at(layer_.norm1_bias));
    const Matrix qkv = linear(ln1, at(layer_.qkv_weight), at(layer_.qkv_bias), 3 * c_);
    const Matrix attention = Attention(problem_, qkv).forward();
    Matrix residual =
        linear(attention, at(layer_.projection_weight), at(layer_.projection_bias), c_);
    residual.add(x);
    const Matrix ln2 = norm(residual, at(layer_.norm2_weight), at(layer_.norm2_bias));
    const Matrix fc = linear(ln2, at(layer_.fc_weight), at(layer_.fc_bias), f);
    Matrix g = fc;
    for (double& value : g.values) value = gelu(value);
    Matrix output = linear(g, at(layer_.fc_projection_weight), at(layer_.fc_projection_bias), c_);
    output.add(residual);
    blocks.push_back({x, ln1, qkv, attention, residual, ln2, fc, g});
    return output;
  }

  Matrix backward(const Block& a, std::size_t unit, const Matrix& dy) {
    const auto at = [&](std::int64_t offset) { return of(unit, offset); };
    const auto to = [&](std::int64_t offset) { return gradient(unit, offset); };
    Matrix dfc = linear_backward(dy, a.gelu, at(layer_.fc_projection_weight),
                                 to(layer_.fc_projection_weight), to(layer_.fc_projection_bias));
    for (std::size_t i = 0; i < dfc.values.size(); ++i) dfc.values[i] *= gelu_slope(a.fc.values[i]);
    const Matrix dln2 =
        linear_backward(dfc, a.ln2, at(layer_.fc_weight), to(layer_.fc_weight), to(layer_.fc_bias));
    Matrix dr = norm_backward(dln2, a.residual, at(layer_.norm2_weight), to(layer_.norm2_weight),
                              to(layer_.norm2_bias));
    dr.add(dy);
    const Matrix d_attention =
        linear_backward(dr, a.attention, at(layer_.projection_weight), to(layer_.projection_weight),
                        to(layer_.projection_bias));
    const Matrix dqkv = Attention(problem_, a.qkv).backward(d_attention);
    const Matrix dln1 = linear_backward(dqkv, a.ln1, at(layer_.qkv_weight), to(layer_.qkv_weight),
                                        to(layer_.qkv_bias));
    Matrix dx = norm_backward(dln1, a.input, at(layer_.norm1_weight), to(layer_.norm1_weight),
                              to(layer_.norm1_bias));
    dx.add(dr);
    return dx;
  }

  // Logits and losses; the gradient of x.
  Matrix head(const Matrix& x, const std::vector<std::int32_t>& targets) {
    const auto v = static_cast<std::size_t>(problem_.model.vocabulary);
    const std::size_t unit = embedding_unit();
    const double* const weight = of(unit, embedding_.norm_weight);
    const double* const table = of(unit, embedding_.token_table);
    const Matrix lnf = norm(x, weight, of(unit, embedding_.norm_bias));
    Matrix logits = linear(lnf, table, nullptr, v);
    step_.logits = logits.values;
    const auto rows = static_cast<double>(x.rows);
    for (std::size_t row = 0; row < x.rows; ++row) {
      double* const of_row = logits[row];
      const auto target = static_cast<std::size_t>(targets[row]);
      const double largest = *std::max_element(of_row, of_row + v);
      double sum = 0;
      for (std::size_t i = 0; i < v; ++i) sum += std::exp(of_row[i] - largest);
      step_.token_losses.push_back(std::log(sum) - (of_row[target] - largest));
      step_.loss += step_.token_losses.back() / rows;
      for (std::size_t i = 0; i < v; ++i)
        of_row[i] = (std::exp(of_row[i] - largest) / sum - (i == target ? 1 : 0)) / rows;
    }
    const Matrix dln =
        linear_backward(logits, lnf, table, gradient(unit, embedding_.token_table), nullptr);
    return norm_backward(dln, x, weight, gradient(unit, embedding_.norm_weight),
                         gradient(unit, embedding_.norm_bias));
  }

  const Problem& problem_;
  LayerOffsets layer_;
  EmbeddingOffsets embedding_;
  std::size_t c_;
  std::vector<Doubles> parameters_;
  Fp64Step step_;
};

}  // namespace

Fp64Step run_fp64_step(const Problem& problem, const Units& parameters,
                       const std::vector<std::int32_t>& tokens,
                       const std::vector<std::int32_t>& targets) {
  return Gpt(problem, parameters).run(tokens, targets);
}

}  // namespace spillway
