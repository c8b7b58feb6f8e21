#include "exec/cpu/gpt_cpu.hpp"

#include "exec/cpu/kernels_gemm.hpp"

namespace spillway {

GptCpu::GptCpu(const Problem& problem, CpuVariant variant)
    : ModelCpu(problem, variant,
               {embedding_offsets(problem.model).token_table,
                embedding_offsets(problem.model).position_table,
                embedding_offsets(problem.model).token_table},
               gpt_saved::gelu),
      layer_(layer_offsets(problem.model)),
      embedding_(embedding_offsets(problem.model)) {}

template <class Element, class Byte>
GptCpu::Activations<Element> GptCpu::activations(const Addresses<Byte>& at) const {
  Activations<Element> a{};
  a.ln1 = tensor<Element>(at, gpt_saved::ln1);
  a.qkv = tensor<Element>(at, gpt_saved::qkv);
  a.attention = tensor<Element>(at, gpt_saved::attention);
  a.residual = tensor<Element>(at, gpt_saved::residual);
  a.ln2 = tensor<Element>(at, gpt_saved::ln2);
  a.fc = tensor<Element>(at, gpt_saved::fc);
  a.gelu = tensor<Element>(at, gpt_saved::gelu);
  Element* const statistics = tensor<Element>(at, gpt_saved::statistics);
  if (statistics == nullptr) return a;
  a.mean1 = statistics;
  a.rstd1 = statistics + t_;
  a.mean2 = statistics + 2 * t_;
  a.rstd2 = statistics + 3 * t_;
  a.log_sum_exp = statistics + 4 * t_;
  return a;
}

void GptCpu::compute_activations(const float* parameters, const float* input, SavedMask available,
                                 const LayerTensors& tensors, float* scores) const {
  const float* p = parameters;
  const CpuKernels& k = kernels_;
  const auto read = activations<const float>(tensors.read);
  const auto write = activations<float>(tensors.write);
  const auto missing = [&](SavedMask tensor) { return (available & tensor) == 0; };
  const bool no_statistics = missing(gpt_saved::statistics);
  if (no_statistics) k.norm_statistics(input, write.mean1, write.rstd1, t_, c_, epsilon_);
  if (missing(gpt_saved::ln1)) {
    k.norm_apply(input, read.mean1, read.rstd1, p + layer_.norm1_weight, p + layer_.norm1_bias,
                 write.ln1, t_, c_);
  }
  if (missing(gpt_saved::qkv)) {
    k.fill_rows(p + layer_.qkv_bias, write.qkv, t_, 3 * c_);
    linear_add(read.ln1, p + layer_.qkv_weight, write.qkv, t_, c_, 3 * c_);
  }
  if (missing(gpt_saved::attention) || no_statistics) {
    attention_forward(k, attention_, side_by_side(attention_, read.qkv), write.attention,
                      write.log_sum_exp, scores);
  }
  if (missing(gpt_saved::residual)) {
    k.add_to_rows(input, p + layer_.projection_bias, write.residual, t_, c_);
    linear_add(read.attention, p + layer_.projection_weight, write.residual, t_, c_, c_);
  }
  if (no_statistics) k.norm_statistics(read.residual, write.mean2, write.rstd2, t_, c_, epsilon_);
  if (missing(gpt_saved::ln2)) {
    k.norm_apply(read.residual, read.mean2, read.rstd2, p + layer_.norm2_weight,
                 p + layer_.norm2_bias, write.ln2, t_, c_);
  }
  if (missing(gpt_saved::fc)) {
    k.fill_rows(p + layer_.fc_bias, write.fc, t_, f_);
    linear_add(read.ln2, p + layer_.fc_weight, write.fc, t_, c_, f_);
  }
  if (missing(gpt_saved::gelu)) k.gelu_forward(read.fc, write.gelu, t_ * f_);
}

void GptCpu::compute_output(const float* parameters, const LayerTensors& tensors,
                            float* output) const {
  const auto read = activations<const float>(tensors.read);
  kernels_.add_to_rows(read.residual, parameters + layer_.fc_projection_bias, output, t_, c_);
  linear_add(read.gelu, parameters + layer_.fc_projection_weight, output, t_, f_, c_);
}

void GptCpu::backward_sequence(const float* parameters, const float* input,
                               const LayerTensors& tensors, float* activation_gradient,
                               float* gradient, const GradientScratch& scratch) const {
  const auto a = activations<const float>(tensors.read);
  backward_feed_forward(parameters, a, activation_gradient, gradient, scratch);
  backward_attention(parameters, input, a, activation_gradient, gradient, scratch);
}

// y = r + fcproj(gelu(fc(ln2(r)))): activation_gradient dL/dy becomes dL/dr.
void GptCpu::backward_feed_forward(const float* parameters, const Activations<const float>& a,
                                   float* activation_gradient, float* gradient,
                                   const GradientScratch& scratch) const {
  const float* p = parameters;
  float *g = gradient, *dy = activation_gradient, *dfc = scratch.wide, *dln2 = scratch.narrow;
  linear_weight_gradient(dy, a.gelu, g + layer_.fc_projection_weight, t_, f_, c_);
  kernels_.add_column_sums(dy, g + layer_.fc_projection_bias, t_, c_);
  linear_input_gradient(dy, p + layer_.fc_projection_weight, dfc, t_, f_, c_);
  kernels_.gelu_backward(a.fc, dfc, t_ * f_);
  linear_weight_gradient(dfc, a.ln2, g + layer_.fc_weight, t_, c_, f_);
  kernels_.add_column_sums(dfc, g + layer_.fc_bias, t_, f_);
  linear_input_gradient(dfc, p + layer_.fc_weight, dln2, t_, c_, f_);
  kernels_.norm_backward(dln2, a.residual, a.mean2, a.rstd2, p + layer_.norm2_weight, dy, false,
                         g + layer_.norm2_weight, g + layer_.norm2_bias, t_, c_);
}

// r = x + proj(attention(qkv(ln1(x)))): activation_gradient dL/dr becomes dL/dx.
void GptCpu::backward_attention(const float* parameters, const float* input,
                                const Activations<const float>& a, float* activation_gradient,
                                float* gradient, const GradientScratch& scratch) const {
  const float* p = parameters;
  float *g = gradient, *dr = activation_gradient, *dqkv = scratch.wide;
  float* narrow = scratch.narrow;  // dL/d(attention), then dL/d(ln1)
  linear_weight_gradient(dr, a.attention, g + layer_.projection_weight, t_, c_, c_);
  kernels_.add_column_sums(dr, g + layer_.projection_bias, t_, c_);
  linear_input_gradient(dr, p + layer_.projection_weight, narrow, t_, c_, c_);
  attention_backward(kernels_, attention_, side_by_side(attention_, a.qkv), a.attention,
                     a.log_sum_exp, narrow, dqkv, scratch.attention);
  linear_weight_gradient(dqkv, a.ln1, g + layer_.qkv_weight, t_, c_, 3 * c_);
  kernels_.add_column_sums(dqkv, g + layer_.qkv_bias, t_, 3 * c_);
  linear_input_gradient(dqkv, p + layer_.qkv_weight, narrow, t_, c_, 3 * c_);
  kernels_.norm_backward(narrow, input, a.mean1, a.rstd1, p + layer_.norm1_weight, dr, false,
                         g + layer_.norm1_weight, g + layer_.norm1_bias, t_, c_);
}

void GptCpu::final_norm(const float* parameters, const float* hidden, float* statistics,
                        float* norm, std::int64_t rows) const {
  float *mean = statistics, *rstd = statistics + rows;
  kernels_.norm_statistics(hidden, mean, rstd, rows, c_, epsilon_);
  kernels_.norm_apply(hidden, mean, rstd, parameters + embedding_.norm_weight,
                      parameters + embedding_.norm_bias, norm, rows, c_);
}

void GptCpu::final_norm_backward(const float* parameters, const float* norm_gradient,
                                 const float* statistics, float* hidden, float* head_gradient,
                                 std::int64_t rows) const {
  kernels_.norm_backward(norm_gradient, hidden, statistics, statistics + rows,
                         parameters + embedding_.norm_weight, hidden, true,
                         head_gradient + embedding_.norm_weight,
                         head_gradient + embedding_.norm_bias, rows, c_);
}

}  // namespace spillway
