#include "exec/cpu/llama_cpu.hpp"

namespace spillway {

LlamaCpu::LlamaCpu(const Problem& problem, CpuVariant variant, bool rounds)
    : ModelCpu(problem, variant, rounds,
               {llama_table_offsets(problem.model).token_table,
                {},
                llama_table_offsets(problem.model).head},
               llama_saved::product),
      layer_(llama_layer_offsets(problem.model)),
      final_norm_(llama_table_offsets(problem.model).final_norm),
      qk_norm_(problem.model.qk_norm),
      qkv_width_(problem.model.qkv_width()),
      query_key_width_(attention_.width() + attention_.kv_width()),
      qkv_(problem.model, layer_.qkv, layer_.qkv_bias, c_, qkv_width_),
      projection_(problem.model, layer_.projection, -1, attention_.width(), c_),
      gate_up_(problem.model, layer_.gate_up, -1, c_, 2 * f_),
      down_(problem.model, layer_.down, -1, f_, c_),
      rotary_(rotary_table(problem.model, t_)) {}

template <class Element, class Byte>
LlamaCpu::Activations<Element> LlamaCpu::activations(const Addresses<Byte>& at) const {
  Activations<Element> a{};
  a.norm1 = tensor<Element>(at, llama_saved::norm1);
  a.qkv = tensor<Element>(at, llama_saved::qkv);
  a.query_key = qk_norm_ ? tensor<Element>(at, llama_saved::rotated) : a.qkv;
  a.attention = tensor<Element>(at, llama_saved::attention);
  a.residual = tensor<Element>(at, llama_saved::residual);
  a.norm2 = tensor<Element>(at, llama_saved::norm2);
  a.gate_up = tensor<Element>(at, llama_saved::gate_up);
  a.product = tensor<Element>(at, llama_saved::product);
  Element* const statistics = tensor<Element>(at, llama_saved::statistics);
  if (statistics == nullptr) return a;
  a.rstd1 = statistics;
  a.rstd2 = statistics + t_;
  a.log_sum_exp = statistics + 2 * t_;
  a.head_rstd = statistics + (2 + attention_.heads) * t_;
  return a;
}

QueryKeyValue<const float> LlamaCpu::attention_input(const Activations<const float>& a) const {
  QueryKeyValue<const float> input = side_by_side(attention_, a.qkv);
  if (qk_norm_) {
    input.query = a.query_key;
    input.key = a.query_key + attention_.width();
    input.query_stride = input.key_stride = query_key_width_;
  }
  return input;
}

void LlamaCpu::rotate(float* query_key, std::int64_t stride, float direction,
                      const std::int32_t* starts) const {
  for (std::int64_t first = 0, end = 0; first < t_; first = end) {  // of a document
    end = starts == nullptr ? t_ : first + 1;
    while (end < t_ && starts[end] == starts[first]) ++end;
    const std::int64_t angle =
        starts == nullptr ? 0 : (first - starts[first]) * attention_.head_width / 2;
    kernels_.rotate_heads(query_key + first * stride, rotary_.cosines.data() + angle,
                          rotary_.sines.data() + angle, end - first,
                          attention_.heads + attention_.kv_heads, attention_.head_width, stride,
                          direction);
  }
}

void LlamaCpu::norm_heads(const float* parameters, const float* qkv, const float* head_rstd,
                          float* query_key) const {
  const AttentionShape& s = attention_;
  for (std::int64_t row = 0; row < t_; ++row) {
    kernels_.rms_apply(qkv, head_rstd, parameters + layer_.query_norm, query_key, s.heads,
                       s.head_width);
    kernels_.rms_apply(qkv + s.width(), head_rstd + s.heads, parameters + layer_.key_norm,
                       query_key + s.width(), s.kv_heads, s.head_width);
    qkv += qkv_width_;
    head_rstd += s.heads + s.kv_heads;
    query_key += query_key_width_;
  }
}

void LlamaCpu::norm_heads_backward(const float* parameters, const Activations<const float>& a,
                                   float* qkv_gradient, float* gradient) const {
  const AttentionShape& s = attention_;
  const float *qkv = a.qkv, *head_rstd = a.head_rstd;
  float* const query_norm_gradient = base_gradient(gradient, layer_.query_norm);
  float* const key_norm_gradient = base_gradient(gradient, layer_.key_norm);
  for (std::int64_t row = 0; row < t_; ++row) {
    float* key_gradient = qkv_gradient + s.width();
    kernels_.rms_backward(qkv_gradient, qkv, head_rstd, parameters + layer_.query_norm,
                          qkv_gradient, true, query_norm_gradient, s.heads, s.head_width);
    kernels_.rms_backward(key_gradient, qkv + s.width(), head_rstd + s.heads,
                          parameters + layer_.key_norm, key_gradient, true, key_norm_gradient,
                          s.kv_heads, s.head_width);
    qkv += qkv_width_;
    head_rstd += s.heads + s.kv_heads;
    qkv_gradient += qkv_width_;
  }
}

void LlamaCpu::norm_heads_weight_gradient(const Activations<const float>& a,
                                          const float* query_key_gradient, float* gradient) const {
  const AttentionShape& s = attention_;
  const float *qkv = a.qkv, *head_rstd = a.head_rstd;
  for (std::int64_t row = 0; row < t_; ++row) {
    kernels_.rms_weight_gradient(query_key_gradient, qkv, head_rstd, gradient + layer_.query_norm,
                                 s.heads, s.head_width);
    kernels_.rms_weight_gradient(query_key_gradient + s.width(), qkv + s.width(),
                                 head_rstd + s.heads, gradient + layer_.key_norm, s.kv_heads,
                                 s.head_width);
    qkv += qkv_width_;
    head_rstd += s.heads + s.kv_heads;
    query_key_gradient += query_key_width_;
  }
}

void LlamaCpu::compute_activations(const float* parameters, const float* input, SavedMask available,
                                   const LayerTensors& tensors, float* scores) const {
  compute_attention(parameters, input, available, tensors, scores);
  compute_feed_forward(parameters, available, tensors);
}

// Up to the residual.
void LlamaCpu::compute_attention(const float* parameters, const float* input, SavedMask available,
                                 const LayerTensors& tensors, float* scores) const {
  const auto read = activations<const float>(tensors.read);
  const auto write = activations<float>(tensors.write);
  const float* p = parameters;
  const CpuKernels& k = kernels_;
  const auto missing = [&](SavedMask tensor) { return (available & tensor) == 0; };
  const bool no_statistics = missing(llama_saved::statistics);
  if (no_statistics) k.rms_statistics(input, write.rstd1, t_, c_, epsilon_);
  if (missing(llama_saved::norm1)) {
    k.rms_apply(input, read.rstd1, p + layer_.norm1, write.norm1, t_, c_);
    finish(write.norm1, c_);
  }
  if (missing(llama_saved::qkv)) {
    qkv_.forward(k, p, read.norm1, nullptr, write.qkv, t_, tensors.adapters);
    if (!qk_norm_) rotate(write.qkv, qkv_width_, 1, tensors.starts);
    finish(write.qkv, qkv_width_);
  }
  if (qk_norm_ && no_statistics) {
    const std::int64_t heads = attention_.heads + attention_.kv_heads;
    for (std::int64_t row = 0; row < t_; ++row) {
      k.rms_statistics(read.qkv + row * qkv_width_, write.head_rstd + row * heads, heads,
                       attention_.head_width, epsilon_);
    }
  }
  if (qk_norm_ && missing(llama_saved::rotated)) {
    norm_heads(p, read.qkv, read.head_rstd, write.query_key);
    rotate(write.query_key, query_key_width_, 1, tensors.starts);
    finish(write.query_key, query_key_width_);
  }
  if (missing(llama_saved::attention) || no_statistics) {
    attend(tensors, attention_input(read), write.attention, write.log_sum_exp, scores);
    if (missing(llama_saved::attention)) finish(write.attention, attention_.width());
  }
  if (missing(llama_saved::residual)) {
    projection_.forward(k, p, read.attention, input, write.residual, t_, tensors.adapters);
    finish(write.residual, c_);
  }
}

void LlamaCpu::compute_feed_forward(const float* parameters, SavedMask available,
                                    const LayerTensors& tensors) const {
  const auto read = activations<const float>(tensors.read);
  const auto write = activations<float>(tensors.write);
  const float* p = parameters;
  const auto missing = [&](SavedMask tensor) { return (available & tensor) == 0; };
  if (missing(llama_saved::statistics))
    kernels_.rms_statistics(read.residual, write.rstd2, t_, c_, epsilon_);
  if (missing(llama_saved::norm2)) {
    kernels_.rms_apply(read.residual, read.rstd2, p + layer_.norm2, write.norm2, t_, c_);
    finish(write.norm2, c_);
  }
  if (missing(llama_saved::gate_up)) {
    gate_up_.forward(kernels_, p, read.norm2, nullptr, write.gate_up, t_, tensors.adapters);
    finish(write.gate_up, 2 * f_);
  }
  if (missing(llama_saved::product)) {
    kernels_.swiglu_forward(read.gate_up, write.product, t_, f_);
    finish(write.product, f_);
  }
}

void LlamaCpu::compute_output(const float* parameters, const LayerTensors& tensors,
                              float* output) const {
  const auto read = activations<const float>(tensors.read);
  down_.forward(kernels_, parameters, read.product, read.residual, output, t_, tensors.adapters);
}

void LlamaCpu::backward_sequence(const float* parameters, const float* input,
                                 const LayerTensors& tensors, float* activation_gradient,
                                 float* gradient, const GradientScratch& scratch) const {
  backward_feed_forward(parameters, tensors, activation_gradient, gradient, scratch);
  backward_attention(parameters, input, tensors, activation_gradient, gradient, scratch);
}

// activation_gradient: dL/dy becomes dL/dr.
void LlamaCpu::backward_feed_forward(const float* parameters, const LayerTensors& tensors,
                                     float* activation_gradient, float* gradient,
                                     const GradientScratch& scratch) const {
  const auto a = activations<const float>(tensors.read);
  const float* p = parameters;
  float *g = gradient, *dy = activation_gradient, *dh = scratch[OutputGradient::norm2];
  float* dgate_up = scratch[OutputGradient::up];
  scratch.keep(OutputGradient::output, dy, t_ * c_);
  // The product's gradient, where up's will be.
  down_.backward(kernels_, p, a.product, dy, {dgate_up + f_, 2 * f_}, g, t_, tensors.adapters);
  kernels_.swiglu_backward(a.gate_up, dgate_up, t_, f_);
  gate_up_.backward(kernels_, p, a.norm2, dgate_up, {dh, c_}, g, t_, tensors.adapters);
  kernels_.rms_backward(dh, a.residual, a.rstd2, p + layer_.norm2, dy, false,
                        base_gradient(g, layer_.norm2), t_, c_);
}

// activation_gradient: dL/dr becomes dL/dx.
void LlamaCpu::backward_attention(const float* parameters, const float* input,
                                  const LayerTensors& tensors, float* activation_gradient,
                                  float* gradient, const GradientScratch& scratch) const {
  const auto a = activations<const float>(tensors.read);
  const float* p = parameters;
  float *g = gradient, *dr = activation_gradient, *dattention = scratch.narrow;
  float *dqkv = scratch[OutputGradient::qkv], *dnorm1 = scratch[OutputGradient::norm1];
  scratch.keep(OutputGradient::residual, dr, t_ * c_);
  projection_.backward(kernels_, p, a.attention, dr, {dattention, attention_.width()}, g, t_,
                       tensors.adapters);
  attention_backward(kernels_, attention_of(tensors), attention_input(a), a.attention,
                     a.log_sum_exp, dattention, dqkv, scratch.attention);
  rotate(dqkv, qkv_width_, -1, tensors.starts);
  if (qk_norm_) {
    if (float* to = scratch[OutputGradient::query_key]; to != nullptr) {
      for (std::int64_t row = 0; row < t_; ++row)
        std::copy_n(dqkv + row * qkv_width_, query_key_width_, to + row * query_key_width_);
    }
    norm_heads_backward(p, a, dqkv, g);
  }
  qkv_.backward(kernels_, p, a.norm1, dqkv, {dnorm1, c_}, g, t_, tensors.adapters);
  kernels_.rms_backward(dnorm1, input, a.rstd1, p + layer_.norm1, dr, false,
                        base_gradient(g, layer_.norm1), t_, c_);
}

void LlamaCpu::weight_gradient_sequence(const float* input, const LayerTensors& tensors,
                                        const GradientScratch& kept, float* gradient) const {
  const auto a = activations<const float>(tensors.read);
  const CpuKernels& k = kernels_;
  float* const g = gradient;
  down_.weight_gradient(k, a.product, kept[OutputGradient::output], g, t_);
  gate_up_.weight_gradient(k, a.norm2, kept[OutputGradient::up], g, t_);
  k.rms_weight_gradient(kept[OutputGradient::norm2], a.residual, a.rstd2, g + layer_.norm2, t_, c_);
  projection_.weight_gradient(k, a.attention, kept[OutputGradient::residual], g, t_);
  if (qk_norm_) norm_heads_weight_gradient(a, kept[OutputGradient::query_key], g);
  qkv_.weight_gradient(k, a.norm1, kept[OutputGradient::qkv], g, t_);
  k.rms_weight_gradient(kept[OutputGradient::norm1], input, a.rstd1, g + layer_.norm1, t_, c_);
}

void LlamaCpu::final_norm(const float* parameters, const float* hidden, float* statistics,
                          float* norm, std::int64_t rows) const {
  kernels_.rms_statistics(hidden, statistics, rows, c_, epsilon_);
  kernels_.rms_apply(hidden, statistics, parameters + final_norm_, norm, rows, c_);
}

void LlamaCpu::final_norm_backward(const float* parameters, const float* norm_gradient,
                                   const float* statistics, float* hidden, float* head_gradient,
                                   std::int64_t rows) const {
  kernels_.rms_backward(norm_gradient, hidden, statistics, parameters + final_norm_, hidden, true,
                        base_gradient(head_gradient, final_norm_), rows, c_);
}

}  // namespace spillway
