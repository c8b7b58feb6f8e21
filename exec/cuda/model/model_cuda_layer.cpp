// A layer, forward and backward, in the order that all architectures share:
//
//   r = x + projection(attention(qkv(norm1(x)))),   y = r + down(activation(up(norm2(r))))
#include <utility>

#include "base/errors.hpp"
#include "exec/cuda/model/model_cuda.hpp"

namespace spillway::cuda {

static_assert(gpt_saved::ln1 == llama_saved::norm1 && gpt_saved::qkv == llama_saved::qkv &&
                  gpt_saved::attention == llama_saved::attention &&
                  gpt_saved::residual == llama_saved::residual &&
                  gpt_saved::ln2 == llama_saved::norm2 && gpt_saved::fc == llama_saved::gate_up &&
                  gpt_saved::gelu == llama_saved::product &&
                  gpt_saved::statistics == llama_saved::statistics,
              "what is said of a llama's tensors here is so of a GPT's");

template <class Element>
typename ModelCuda<Element>::Activations ModelCuda<Element>::activations(
    const TensorAddresses& at) const {
  const auto tensor = [&](SavedMask bit) { return reinterpret_cast<Element*>(at[bit_of(bit)]); };
  Activations a{};
  a.norm1 = tensor(llama_saved::norm1);
  a.qkv = tensor(llama_saved::qkv);
  a.query_key = problem_.model.qk_norm ? tensor(llama_saved::rotated) : a.qkv;
  a.attention = tensor(llama_saved::attention);
  a.residual = tensor(llama_saved::residual);
  a.norm2 = tensor(llama_saved::norm2);
  a.up = tensor(llama_saved::gate_up);
  a.activated = tensor(saved_activated);
  auto* next = reinterpret_cast<float*>(at[bit_of(saved_statistics)]);
  const std::int64_t stride = statistics_width_ * t_;
  const auto take = [&](std::int64_t rows) { return std::exchange(next, next + rows * t_); };
  const auto of_norm = [&](const Norm& norm) {
    float* const mean = norm.bias ? take(1) : nullptr;
    return RowStatistics{mean, take(1), t_, stride};
  };
  a.statistics1 = of_norm(layer_.norm1);
  a.statistics2 = of_norm(layer_.norm2);
  a.log_sum_exp = take(problem_.model.heads);
  a.head_statistics = {nullptr, next, t_, stride};
  return a;
}

template <class Element>
AttentionSizes ModelCuda<Element>::attention_sizes(const KernelBatch& batch) const {
  const ModelSpec& model = problem_.model;
  AttentionSizes sizes;
  sizes.sequences = s_;
  sizes.tokens = t_;
  sizes.heads = model.heads;
  sizes.kv_heads = model.kv_heads;
  sizes.head_size = model.width_of_head();
  sizes.statistics_stride = statistics_width_ * t_;
  sizes.kernels = attention_;
  sizes.window = model.window;
  sizes.borders = batch.borders;
  return sizes;
}

template <class Element>
AttentionInput<Element> ModelCuda<Element>::attention_input(const Activations& a) const {
  const ModelSpec& model = problem_.model;
  const std::int64_t query_key = model.attention_width() + model.kv_width();
  return {a.query_key, a.qkv + query_key, model.qk_norm ? query_key : layer_.qkv.out,
          layer_.qkv.out};
}

template <class Element>
void ModelCuda<Element>::norm_forward(const Norm& norm, const Element* parameters,
                                      const Element* input, const RowStatistics& statistics,
                                      Element* output, NormParts parts, std::int64_t rows) {
  const Element* const weight = parameters + norm.weight;
  if (norm.bias) {
    cuda::norm_forward<Element>(input, weight, parameters + *norm.bias, output, statistics, parts,
                                epsilon_, rows, c_, stream_);
  } else {
    rms_norm_forward<Element>(input, weight, output, statistics, parts, epsilon_, rows, c_,
                              stream_);
  }
}

template <class Element>
template <class Gradient>
void ModelCuda<Element>::norm_backward(const Norm& norm, const Element* parameters,
                                       const Element* output_gradient, const Element* input,
                                       const RowStatistics& statistics, Element* input_gradient,
                                       bool adds, const NormSums<Gradient>& sums,
                                       std::int64_t rows) {
  const Element* const weight = parameters + norm.weight;
  if (norm.bias) {
    cuda::norm_backward<Element>(output_gradient, input, weight, statistics, input_gradient, adds,
                                 sums, rows, c_, workspace_.kernels, stream_);
  } else {
    SPILLWAY_ASSERT(sums.before == nullptr && sums.after == nullptr,
                    "its kernel makes no sums of biases");
    rms_norm_backward<Element>(output_gradient, input, weight, statistics, input_gradient, adds,
                               sums.weight, sums.overwrites, rows, c_, workspace_.kernels, stream_);
  }
}

template <class Element>
void ModelCuda<Element>::compute_activations(const KernelBatch& batch, SavedMask available) {
  const Element* const p = batch.parameters;
  const Activations& a = batch.at;
  const auto missing = [&](SavedMask bit) { return (available & bit) == 0; };
  const bool no_statistics = missing(saved_statistics);
  const auto norm = [&](const Norm& which, const Element* input, const RowStatistics& statistics,
                        Element* output, SavedMask bit) {
    if (!no_statistics && !missing(bit)) return;
    norm_forward(which, p, input, statistics, output, parts_of(no_statistics, missing(bit)),
                 s_ * t_);
  };
  norm(layer_.norm1, batch.input, a.statistics1, a.norm1, llama_saved::norm1);
  if (missing(llama_saved::qkv))
    products_.forward(layer_.qkv, p, batch.adapters, a.norm1, nullptr, a.qkv);
  prepare_heads(batch, available);
  if (missing(llama_saved::attention) || no_statistics) {
    attention_forward<Element>(attention_sizes(batch), attention_input(a),
                               missing(llama_saved::attention) ? a.attention : nullptr,
                               no_statistics ? a.log_sum_exp : nullptr, stream_);
  }
  if (missing(llama_saved::residual))
    products_.forward(layer_.projection, p, batch.adapters, a.attention, batch.input, a.residual);
  norm(layer_.norm2, a.residual, a.statistics2, a.norm2, llama_saved::norm2);
  if (missing(llama_saved::gate_up))
    products_.forward(layer_.up, p, batch.adapters, a.norm2, nullptr, a.up);
  if (missing(saved_activated)) activate(a);
}

template <class Element>
void ModelCuda<Element>::compute_output(const KernelBatch& batch, Element* output) {
  const Activations& a = batch.at;
  products_.forward(layer_.down, batch.parameters, batch.adapters, a.activated, a.residual, output);
}

template <class Element>
void ModelCuda<Element>::backward_layer(const KernelBatch& batch, const Backward& backward) {
  with_gradient(backward, [&](auto* gradient) {
    backward_feed_forward(batch, backward, gradient);
    backward_attention(batch, backward, gradient);
  });
}

// Left out where a later pass makes the gradients of matrices (model_cuda_passes.cpp).
template <class Element>
template <class Gradient>
void ModelCuda<Element>::weight_gradient(const LayerProduct& product, const KernelBatch& batch,
                                         const Backward& backward, const Element* y_gradient,
                                         const Element* x, Gradient* gradient) {
  if (backward.sums != nullptr) return;
  products_.weight_gradient(product, batch.parameters, batch.adapters, y_gradient, x, gradient,
                            backward.overwrites);
}

// activation_gradient dL/dy becomes dL/dr. What sums of a bias's gradient are taken of is in the
// registers of a kernel that reads or writes it anyway: that of up's output in the activation's,
// dL/dy and dL/dr, which is the gradient of the bias of attention's projection, too, in the norm's.
template <class Element>
template <class Gradient>
void ModelCuda<Element>::backward_feed_forward(const KernelBatch& batch, const Backward& backward,
                                               Gradient* gradient) {
  const Element* const p = batch.parameters;
  const Activations& a = batch.at;
  Element *dy = backward.activation_gradient, *dup = backward.to.up, *dnorm = backward.to.narrow;
  keep(dy, backward.to.output);
  activate_backward(batch, backward);
  weight_gradient(layer_.down, batch, backward, dy, a.activated, gradient);
  products_.input_gradient(layer_.up, p, batch.adapters, dup, dnorm);
  weight_gradient(layer_.up, batch, backward, dup, a.norm2, gradient);
  const auto sum = [&](std::optional<std::int64_t> offset) {
    return sum_at(backward, gradient, offset);
  };
  const NormSums<Gradient> sums{sum(layer_.norm2.weight), sum(layer_.norm2.bias),
                                backward.overwrites, sum(layer_.down.bias),
                                sum(layer_.projection.bias)};
  norm_backward(layer_.norm2, p, dnorm, a.residual, a.statistics2, dy, true, sums, s_ * t_);
}

// activation_gradient dL/dr becomes dL/dx.
template <class Element>
template <class Gradient>
void ModelCuda<Element>::backward_attention(const KernelBatch& batch, const Backward& backward,
                                            Gradient* gradient) {
  const Element* const p = batch.parameters;
  const Activations& a = batch.at;
  const bool overwrites = backward.overwrites;
  Element *dr = backward.activation_gradient, *dqkv = backward.to.qkv;
  Element* narrow = backward.to.narrow;  // dL/d(attention), then dL/d(norm1)
  keep(dr, backward.to.residual);
  products_.input_gradient(layer_.projection, p, batch.adapters, dr, narrow);
  weight_gradient(layer_.projection, batch, backward, dr, a.attention, gradient);
  attention_backward<Element>(attention_sizes(batch), attention_input(a), a.attention,
                              a.log_sum_exp, narrow, dqkv, backward.to.dots, stream_);
  prepare_heads_backward(batch, backward);
  if (Gradient* const bias = sum_at(backward, gradient, layer_.qkv.bias); bias != nullptr) {
    column_sums<Element>(dqkv, bias, overwrites, s_ * t_, layer_.qkv.out, workspace_.kernels,
                         stream_);
  }
  products_.input_gradient(layer_.qkv, p, batch.adapters, dqkv, narrow);
  weight_gradient(layer_.qkv, batch, backward, dqkv, a.norm1, gradient);
  const NormSums<Gradient> sums{sum_at(backward, gradient, layer_.norm1.weight),
                                sum_at(backward, gradient, layer_.norm1.bias), overwrites};
  norm_backward(layer_.norm1, p, narrow, batch.input, a.statistics1, dr, true, sums, s_ * t_);
}

#define SPILLWAY_LAYER(Element)                                                                    \
  template ModelCuda<Element>::Activations ModelCuda<Element>::activations(const TensorAddresses&) \
      const;                                                                                       \
  template void ModelCuda<Element>::compute_activations(const KernelBatch&, SavedMask);            \
  template void ModelCuda<Element>::compute_output(const KernelBatch&, Element*);                  \
  template void ModelCuda<Element>::backward_layer(const KernelBatch&, const Backward&);           \
  template void ModelCuda<Element>::norm_forward(const Norm&, const Element*, const Element*,      \
                                                 const RowStatistics&, Element*, NormParts,        \
                                                 std::int64_t);
SPILLWAY_LAYER(float)
SPILLWAY_LAYER(bf16)
#undef SPILLWAY_LAYER
#define SPILLWAY_NORM(Element, Gradient)                                                          \
  template void ModelCuda<Element>::norm_backward(const Norm&, const Element*, const Element*,    \
                                                  const Element*, const RowStatistics&, Element*, \
                                                  bool, const NormSums<Gradient>&, std::int64_t);
SPILLWAY_NORM(float, float)
SPILLWAY_NORM(bf16, float)
SPILLWAY_NORM(bf16, bf16)
#undef SPILLWAY_NORM

}  // namespace spillway::cuda
