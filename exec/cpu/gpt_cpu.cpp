#include "exec/cpu/gpt_cpu.hpp"

namespace spillway {

GptCpu::GptCpu(const Problem& problem, CpuVariant variant, bool rounds)
    : ModelCpu(problem, variant, rounds,
               {embedding_offsets(problem.model).token_table,
                embedding_offsets(problem.model).position_table,
                embedding_offsets(problem.model).token_table},
               gpt_saved::gelu),
      layer_(layer_offsets(problem.model)),
      embedding_(embedding_offsets(problem.model)),
      qkv_(problem.model, layer_.qkv_weight, layer_.qkv_bias, c_, 3 * c_),
      projection_(problem.model, layer_.projection_weight, layer_.projection_bias, c_, c_),
      fc_(problem.model, layer_.fc_weight, layer_.fc_bias, c_, f_),
      fc_projection_(problem.model, layer_.fc_projection_weight, layer_.fc_projection_bias, f_,
                     c_) {}

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
    finish(write.ln1, c_);
  }
  if (missing(gpt_saved::qkv)) {
    qkv_.forward(k, p, read.ln1, nullptr, write.qkv, t_, tensors.adapters);
    finish(write.qkv, 3 * c_);
  }
  if (missing(gpt_saved::attention) || no_statistics) {
    attend(tensors, side_by_side(attention_, read.qkv), write.attention, write.log_sum_exp, scores);
    if (missing(gpt_saved::attention)) finish(write.attention, c_);
  }
  if (missing(gpt_saved::residual)) {
    projection_.forward(k, p, read.attention, input, write.residual, t_, tensors.adapters);
    finish(write.residual, c_);
  }
  compute_feed_forward(p, available, tensors);
}

// From the residual on.
void GptCpu::compute_feed_forward(const float* parameters, SavedMask available,
                                  const LayerTensors& tensors) const {
  const float* p = parameters;
  const CpuKernels& k = kernels_;
  const auto read = activations<const float>(tensors.read);
  const auto write = activations<float>(tensors.write);
  const auto missing = [&](SavedMask tensor) { return (available & tensor) == 0; };
  const bool no_statistics = missing(gpt_saved::statistics);
  if (no_statistics) k.norm_statistics(read.residual, write.mean2, write.rstd2, t_, c_, epsilon_);
  if (missing(gpt_saved::ln2)) {
    k.norm_apply(read.residual, read.mean2, read.rstd2, p + layer_.norm2_weight,
                 p + layer_.norm2_bias, write.ln2, t_, c_);
    finish(write.ln2, c_);
  }
  if (missing(gpt_saved::fc)) {
    fc_.forward(k, p, read.ln2, nullptr, write.fc, t_, tensors.adapters);
    finish(write.fc, f_);
  }
  if (missing(gpt_saved::gelu)) {
    k.gelu_forward(read.fc, write.gelu, t_ * f_);
    finish(write.gelu, f_);
  }
}

void GptCpu::compute_output(const float* parameters, const LayerTensors& tensors,
                            float* output) const {
  const auto read = activations<const float>(tensors.read);
  fc_projection_.forward(kernels_, parameters, read.gelu, read.residual, output, t_,
                         tensors.adapters);
}

void GptCpu::backward_sequence(const float* parameters, const float* input,
                               const LayerTensors& tensors, float* activation_gradient,
                               float* gradient, const GradientScratch& scratch) const {
  backward_feed_forward(parameters, tensors, activation_gradient, gradient, scratch);
  backward_attention(parameters, input, tensors, activation_gradient, gradient, scratch);
}

// y = r + fcproj(gelu(fc(ln2(r)))): activation_gradient dL/dy becomes dL/dr.
void GptCpu::backward_feed_forward(const float* parameters, const LayerTensors& tensors,
                                   float* activation_gradient, float* gradient,
                                   const GradientScratch& scratch) const {
  const auto a = activations<const float>(tensors.read);
  const float* p = parameters;
  float *g = gradient, *dy = activation_gradient;
  float *dfc = scratch[OutputGradient::up], *dln2 = scratch[OutputGradient::norm2];
  scratch.keep(OutputGradient::output, dy, t_ * c_);
  fc_projection_.backward(kernels_, p, a.gelu, dy, {dfc, f_}, g, t_, tensors.adapters);
  kernels_.gelu_backward(a.fc, dfc, t_ * f_);
  fc_.backward(kernels_, p, a.ln2, dfc, {dln2, c_}, g, t_, tensors.adapters);
  kernels_.norm_backward(dln2, a.residual, a.mean2, a.rstd2, p + layer_.norm2_weight, dy, false,
                         base_gradient(g, layer_.norm2_weight), base_gradient(g, layer_.norm2_bias),
                         t_, c_);
}

// r = x + proj(attention(qkv(ln1(x)))): activation_gradient dL/dr becomes dL/dx.
void GptCpu::backward_attention(const float* parameters, const float* input,
                                const LayerTensors& tensors, float* activation_gradient,
                                float* gradient, const GradientScratch& scratch) const {
  const auto a = activations<const float>(tensors.read);
  const float* p = parameters;
  float *g = gradient, *dr = activation_gradient, *dattention = scratch.narrow;
  float *dqkv = scratch[OutputGradient::qkv], *dln1 = scratch[OutputGradient::norm1];
  scratch.keep(OutputGradient::residual, dr, t_ * c_);
  projection_.backward(kernels_, p, a.attention, dr, {dattention, c_}, g, t_, tensors.adapters);
  attention_backward(kernels_, attention_of(tensors), side_by_side(attention_, a.qkv), a.attention,
                     a.log_sum_exp, dattention, dqkv, scratch.attention);
  qkv_.backward(kernels_, p, a.ln1, dqkv, {dln1, c_}, g, t_, tensors.adapters);
  kernels_.norm_backward(dln1, input, a.mean1, a.rstd1, p + layer_.norm1_weight, dr, false,
                         base_gradient(g, layer_.norm1_weight), base_gradient(g, layer_.norm1_bias),
                         t_, c_);
}

void GptCpu::weight_gradient_sequence(const float* input, const LayerTensors& tensors,
                                      const GradientScratch& kept, float* gradient) const {
  const auto a = activations<const float>(tensors.read);
  const CpuKernels& k = kernels_;
  float* const g = gradient;
  fc_projection_.weight_gradient(k, a.gelu, kept[OutputGradient::output], g, t_);
  fc_.weight_gradient(k, a.ln2, kept[OutputGradient::up], g, t_);
  k.norm_weight_gradient(kept[OutputGradient::norm2], a.residual, a.mean2, a.rstd2,
                         g + layer_.norm2_weight, g + layer_.norm2_bias, t_, c_);
  projection_.weight_gradient(k, a.attention, kept[OutputGradient::residual], g, t_);
  qkv_.weight_gradient(k, a.ln1, kept[OutputGradient::qkv], g, t_);
  k.norm_weight_gradient(kept[OutputGradient::norm1], input, a.mean1, a.rstd1,
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
                         base_gradient(head_gradient, embedding_.norm_weight),
                         base_gradient(head_gradient, embedding_.norm_bias), rows, c_);
}

}  // namespace spillway
