// The elementwise and row-wise kernels of the CPU backend, compiled three times (portable, AVX2,
// AVX-512) and chosen at run time.
//
// All variants give bit-identical results: no fused multiply-add, every sum over a row is kept in
// 16 partial sums (element i goes to lane i mod 16) that are added up in one fixed order, and exp
// is the same polynomial everywhere. Kernels take plain pointers, any alignment, and allocate
// nothing. Numbers are fp32; where a kernel takes bf16, that is widened when read and rounded to
// nearest even when written, but for AdamW's moments, which are rounded stochastically.
// "(rows, columns)" arrays are row-major and dense; `attention_*` rows are `stride` apart.
#pragma once

#include <cstdint>
#include <type_traits>

#include "exec/cpu/stochastic_rounding.hpp"

namespace spillway {

enum class CpuVariant : std::uint8_t { plain, avx2, avx512 };

// One AdamW step with everything that does not depend on the element worked out; see adam.hpp.
struct AdamConstants {
  float decay_factor = 1;                // 1 - learning_rate * weight_decay
  float beta1 = 0, one_minus_beta1 = 1;  //
  float beta2 = 0, one_minus_beta2 = 1;  //
  float inverse_root_correction2 = 1;    // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;                     //
  float step_size = 0;                   // learning_rate / (1 - beta1^t)
  float gradient_factor = 1;             // of gradient clipping
  NoiseKey noise;                        // of the step, for moments in bf16 and dropout
};

// The rows of scores (rows, keys) of one attention head. The query in row i is at key first_query +
// i and sees the keys up to that one: all of them, or with a sliding window the last `window` of
// them; and none before its document's first. What a query does not see is written as zero.
struct AttentionRows {
  float* scores;
  std::int64_t rows, keys, first_query;
  std::int64_t window = 0;  // 0: none
  // (rows), or null: where in the sequence the documents of the queries begin; the scores' first
  // key is the sequence's first_key.
  const std::int32_t* starts = nullptr;
  std::int64_t first_key = 0;
};

// Which elements a run of them are, for the rounding of moments in bf16: constants.noise becomes
// the unit's, and the run ends before the next multiple of 2^32.
struct NoisePlace {
  std::uint32_t unit = 0;
  std::uint64_t first_element = 0;
};

template <class Gradient, class Parameter, class Moment>
using AdamKernel = double (*)(float* master, Moment* m, Moment* v, const Gradient* gradient,
                              const Gradient* second_gradient, Parameter* parameters_out,
                              std::int64_t n, const AdamConstants& constants, NoisePlace place);
// By the width of the moments.
template <class Gradient, class Parameter>
struct AdamKernels {
  AdamKernel<Gradient, Parameter, float> with_fp32;
  AdamKernel<Gradient, Parameter, bf16> with_bf16;
};

struct CpuKernels {
  const char* name;

  // y = exp(x); below -87.3 gives 0; about 2 units in the last place; NaN stays NaN.
  void (*exponential)(const float* x, float* y, std::int64_t n);
  // out = a + b (out may be a or b).
  void (*add)(const float* a, const float* b, float* out, std::int64_t n);
  void (*add_bf16)(const bf16* a, const bf16* b, bf16* out, std::int64_t n);
  void (*add_from_bf16)(const float* a, const bf16* b, float* out, std::int64_t n);
  // Every row of out (rows, columns) = row; what a GEMM with beta = 1 then adds to: the bias.
  void (*fill_rows)(const float* row, float* out, std::int64_t rows, std::int64_t columns);
  // Every row of out (rows, columns) = the row of x + row: a residual and a bias, before such a
  // GEMM.
  void (*add_to_rows)(const float* x, const float* row, float* out, std::int64_t rows,
                      std::int64_t columns);
  // sums (columns) += the rows of x, in order.
  void (*add_column_sums)(const float* x, float* sums, std::int64_t rows, std::int64_t columns);

  // Layer norm: per-row mean and 1 / sqrt(variance + epsilon); then the normalised
  // rows.
  void (*norm_statistics)(const float* x, float* mean, float* rstd, std::int64_t rows,
                          std::int64_t columns, float epsilon);
  void (*norm_apply)(const float* x, const float* mean, const float* rstd, const float* weight,
                     const float* bias, float* y, std::int64_t rows, std::int64_t columns);
  // weight_gradient, bias_gradient (columns) += , or both null; x_gradient (rows, columns) += or =,
  // by `overwrite`.
  void (*norm_backward)(const float* y_gradient, const float* x, const float* mean,
                        const float* rstd, const float* weight, float* x_gradient, bool overwrite,
                        float* weight_gradient, float* bias_gradient, std::int64_t rows,
                        std::int64_t columns);
  // What norm_backward adds to weight_gradient and bias_gradient, with the same bits, and nothing
  // else.
  void (*norm_weight_gradient)(const float* y_gradient, const float* x, const float* mean,
                               const float* rstd, float* weight_gradient, float* bias_gradient,
                               std::int64_t rows, std::int64_t columns);

  // GELU, tanh approximation: y = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
  void (*gelu_forward)(const float* x, float* y, std::int64_t n);
  void (*gelu_backward)(const float* x, float* gradient, std::int64_t n);  // gradient *= dy/dx

  // RMSNorm: per-row 1 / sqrt(mean(x^2) + epsilon); then the normalised rows.
  void (*rms_statistics)(const float* x, float* rstd, std::int64_t rows, std::int64_t columns,
                         float epsilon);
  void (*rms_apply)(const float* x, const float* rstd, const float* weight, float* y,
                    std::int64_t rows, std::int64_t columns);
  // weight_gradient (columns) += , or null; x_gradient (rows, columns) += or =, by `overwrite`: it
  // may then be x or y_gradient.
  void (*rms_backward)(const float* y_gradient, const float* x, const float* rstd,
                       const float* weight, float* x_gradient, bool overwrite,
                       float* weight_gradient, std::int64_t rows, std::int64_t columns);
  // What rms_backward adds to weight_gradient, with the same bits.
  void (*rms_weight_gradient)(const float* y_gradient, const float* x, const float* rstd,
                              float* weight_gradient, std::int64_t rows, std::int64_t columns);

  // SwiGLU: product (rows, columns) = silu(gate) up, silu(x) = x / (1 + exp(-x)); a row of gate_up
  // (rows, 2 columns) holds the gate and then up.
  void (*swiglu_forward)(const float* gate_up, float* product, std::int64_t rows,
                         std::int64_t columns);
  // gradient (rows, 2 columns): in, in the second half of each row, that of the product; out, that
  // of gate_up.
  void (*swiglu_backward)(const float* gate_up, float* gradient, std::int64_t rows,
                          std::int64_t columns);

  // Rotary embedding, in place: element j of the first half of a head and element j of its second
  // half are turned by the angle whose cosine and sine are in place j of the row of `cosines` and
  // `sines` (rows, head_width / 2). A row of x begins with `heads` heads; rows are `stride` apart.
  // direction 1: forward; -1: its inverse, which is also its backward.
  void (*rotate_heads)(float* x, const float* cosines, const float* sines, std::int64_t rows,
                       std::int64_t heads, std::int64_t head_width, std::int64_t stride,
                       float direction);

  // scores -> exp(scores - row maximum); its row sums; log-sum-exp of every row.
  void (*attention_softmax)(AttentionRows rows, float* row_sums, float* log_sum_exp);
  // scores -> probabilities exp(scores - log_sum_exp).
  void (*attention_probabilities)(AttentionRows rows, const float* log_sum_exp);
  // gradient of probabilities -> gradient of scores: p (g - row_dots) scale, in place in
  // `gradient`.
  void (*attention_score_gradient)(AttentionRows probabilities, float* gradient,
                                   const float* row_dots, float scale);
  // Row i of x (rows, columns) /= divisors[i]; rows are `stride` apart.
  void (*divide_rows)(float* x, const float* divisors, std::int64_t rows, std::int64_t columns,
                      std::int64_t stride);
  // dots[i] = row i of a . row i of b; rows are `stride` apart in both.
  void (*row_dots)(const float* a, const float* b, float* dots, std::int64_t rows,
                   std::int64_t columns, std::int64_t stride);

  // Cross entropy of one token: returns log(sum exp(logits)) - logits[target], and replaces the
  // logits by (softmax - onehot) * scale.
  double (*cross_entropy)(float* logits, std::int32_t target, std::int64_t n, float scale);

  // The sum of squares of x + second (n); second may be null. In fp64, by blocks of 2048 elements
  // from the first on, each of them in 32 partial sums; blocks are added up in order in groups of
  // 64, and so are the groups: not finite only where an element is not. bf16 is added in fp32: the
  // sum is that of the widened elements, bit by bit. exec/run/clipping.hpp has it by several
  // threads.
  double (*sum_of_squares)(const float* x, const float* second, std::int64_t n);
  double (*sum_of_squares_bf16)(const bf16* x, const bf16* second, std::int64_t n);

  // AdamW on n elements, in place; returns the sum of squares of the gradient before it is clipped.
  AdamKernels<float, float> adamw;
  AdamKernels<float, bf16> adamw_to_bf16;
  AdamKernels<bf16, float> adamw_from_bf16;
  AdamKernels<bf16, bf16> adamw_bf16;

  // y = x.
  void (*round_to_bf16)(const float* x, bf16* y, std::int64_t n);
  void (*widen)(const bf16* x, float* y, std::int64_t n);
  // x = x rounded to bf16.
  void (*round_in_place)(float* x, std::int64_t n);

  // The same, by type.
  double sum_squares(const float* x, const float* second, std::int64_t n) const {
    return sum_of_squares(x, second, n);
  }
  double sum_squares(const bf16* x, const bf16* second, std::int64_t n) const {
    return sum_of_squares_bf16(x, second, n);
  }
  template <class Gradient, class Parameter, class Moment>
  AdamKernel<Gradient, Parameter, Moment> adam() const {
    if constexpr (std::is_same_v<Moment, float>) {
      return adam_of<Gradient, Parameter>().with_fp32;
    } else {
      return adam_of<Gradient, Parameter>().with_bf16;
    }
  }
  template <class Gradient, class Parameter>
  const AdamKernels<Gradient, Parameter>& adam_of() const {
    if constexpr (std::is_same_v<Gradient, float>) {
      if constexpr (std::is_same_v<Parameter, float>) {
        return adamw;
      } else {
        return adamw_to_bf16;
      }
    } else if constexpr (std::is_same_v<Parameter, float>) {
      return adamw_from_bf16;
    } else {
      return adamw_bf16;
    }
  }
};

// Whether this program holds the variant and this CPU can run it. `plain` always.
bool cpu_variant_available(CpuVariant variant);
// The fastest available one.
CpuVariant best_cpu_variant();
// Throws MachineError when it is not available.
const CpuKernels& cpu_kernels(CpuVariant variant);

}  // namespace spillway
