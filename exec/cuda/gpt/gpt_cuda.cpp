#include "exec/cuda/gpt/gpt_cuda.hpp"

#include "base/errors.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

template <class Element>
typename GptCuda<Element>::Tables GptCuda<Element>::tables(const Problem& problem) {
  SPILLWAY_ASSERT(problem.model.architecture == Architecture::gpt);
  const EmbeddingOffsets offsets = embedding_offsets(problem.model);
  return {offsets.token_table, offsets.position_table, offsets.token_table};
}

template <class Element>
GptCuda<Element>::GptCuda(const Problem& problem, const ModelWorkspace& workspace,
                          cudaStream_t stream, AttentionKernels attention,
                          GeluBackward gelu_backward)
    : Base(problem, workspace, stream, attention, tables(problem), gpt_saved::gelu),
      gelu_backward_(gelu_backward),
      layer_(layer_offsets(problem.model)),
      embedding_(embedding_offsets(problem.model)) {}

template <class Element>
typename GptCuda<Element>::Activations GptCuda<Element>::activations(
    const TensorAddresses& at) const {
  Activations a{};
  a.ln1 = tensor(at, gpt_saved::ln1);
  a.qkv = tensor(at, gpt_saved::qkv);
  a.attention = tensor(at, gpt_saved::attention);
  a.residual = tensor(at, gpt_saved::residual);
  a.ln2 = tensor(at, gpt_saved::ln2);
  a.fc = tensor(at, gpt_saved::fc);
  a.gelu = tensor(at, gpt_saved::gelu);
  float* const statistics = Base::template tensor<float>(at, gpt_saved::statistics);
  const std::int64_t stride = statistics_stride();
  a.norm1 = {statistics, statistics + t_, t_, stride};
  a.norm2 = {statistics + 2 * t_, statistics + 3 * t_, t_, stride};
  a.log_sum_exp = statistics + 4 * t_;
  return a;
}

template <class Element>
void GptCuda<Element>::norm(const Element* input, const Element* weight, const Element* bias,
                            Element* output, const RowStatistics& statistics, bool needs_statistics,
                            bool needs_output) {
  if (!needs_statistics && !needs_output) return;
  const NormParts parts = !needs_output       ? NormParts::statistics
                          : !needs_statistics ? NormParts::output
                                              : NormParts::statistics_and_output;
  norm_forward(input, weight, bias, output, statistics, parts, epsilon_, s_ * t_, c_, stream_);
}

template <class Element>
void GptCuda<Element>::compute_activations(const Element* parameters, const Element* input,
                                           SavedMask available, const TensorAddresses& at) {
  const Activations a = activations(at);
  const Element* p = parameters;
  const std::int64_t rows = s_ * t_;
  const auto missing = [&](SavedMask bit) { return (available & bit) == 0; };
  const bool no_statistics = missing(gpt_saved::statistics);
  norm(input, p + layer_.norm1_weight, p + layer_.norm1_bias, a.ln1, a.norm1, no_statistics,
       missing(gpt_saved::ln1));
  if (missing(gpt_saved::qkv)) {
    matmul_.template linear<Element>(a.ln1, p + layer_.qkv_weight, p + layer_.qkv_bias, nullptr,
                                     a.qkv, rows, c_, 3 * c_, 0, stream_);
  }
  if (missing(gpt_saved::attention) || no_statistics) {
    const AttentionSizes sizes = attention_sizes();
    attention_forward<Element>(sizes, side_by_side<Element>(sizes, a.qkv),
                               missing(gpt_saved::attention) ? a.attention : nullptr,
                               no_statistics ? a.log_sum_exp : nullptr, stream_);
  }
  if (missing(gpt_saved::residual)) {
    matmul_.template linear<Element>(a.attention, p + layer_.projection_weight,
                                     p + layer_.projection_bias, input, a.residual, rows, c_, c_, 0,
                                     stream_);
  }
  norm(a.residual, p + layer_.norm2_weight, p + layer_.norm2_bias, a.ln2, a.norm2, no_statistics,
       missing(gpt_saved::ln2));
  if (missing(gpt_saved::fc)) {
    matmul_.template linear<Element>(a.ln2, p + layer_.fc_weight, p + layer_.fc_bias, nullptr, a.fc,
                                     rows, c_, f_, 0, stream_);
  }
  if (missing(gpt_saved::gelu)) gelu_forward<Element>(a.fc, a.gelu, rows * f_, stream_);
}

template <class Element>
void GptCuda<Element>::compute_output(const Element* parameters, const TensorAddresses& at,
                                      Element* output) {
  const Activations a = activations(at);
  matmul_.template linear<Element>(a.gelu, parameters + layer_.fc_projection_weight,
                                   parameters + layer_.fc_projection_bias, a.residual, output,
                                   s_ * t_, f_, c_, 0, stream_);
}

// y = r + fcproj(gelu(fc(ln2(r)))): activation_gradient dL/dy becomes dL/dr. What sums of a bias's
// gradient are taken of is in the registers of a kernel that reads or writes it anyway: dL/dfc in
// GELU's, dL/dy and dL/dr, which is the gradient of the bias of attention's projection, too, in the
// norm's.
template <class Element>
template <class Gradient>
void GptCuda<Element>::backward_feed_forward(const Element* parameters, const Activations& a,
                                             bool makes_gelu, Element* activation_gradient,
                                             Gradient* gradient, bool overwrites,
                                             const GradientScratch& scratch) {
  const Element* p = parameters;
  Gradient* g = gradient;
  Element *dy = activation_gradient, *dfc = scratch.wide, *dln2 = scratch.narrow;
  const std::int64_t rows = s_ * t_;
  gelu_backward_by<Element, Gradient>(
      gelu_backward_, matmul_,
      {dy, p + layer_.fc_projection_weight, a.fc, dfc, makes_gelu ? a.gelu : nullptr,
       g + layer_.fc_bias, overwrites, reinterpret_cast<Element*>(workspace_.bias_sums), rows, c_,
       f_},
      workspace_.kernels, stream_);
  matmul_.template weight_gradient<Element>(dy, a.gelu, g + layer_.fc_projection_weight, overwrites,
                                            rows, f_, c_, 0, stream_);
  matmul_.template weight_gradient<Element>(dfc, a.ln2, g + layer_.fc_weight, overwrites, rows, c_,
                                            f_, 0, stream_);
  matmul_.template input_gradient<Element>(dfc, p + layer_.fc_weight, dln2, rows, c_, f_, 0,
                                           stream_);
  const NormSums<Gradient> sums{g + layer_.norm2_weight, g + layer_.norm2_bias, overwrites,
                                g + layer_.fc_projection_bias, g + layer_.projection_bias};
  norm_backward<Element>(dln2, a.residual, p + layer_.norm2_weight, a.norm2, dy, true, sums, rows,
                         c_, workspace_.kernels, stream_);
}

// r = x + proj(attention(qkv(ln1(x)))): activation_gradient dL/dr becomes dL/dx. The sum of dL/dr
// over rows is there already.
template <class Element>
template <class Gradient>
void GptCuda<Element>::backward_attention(const Element* parameters, const Element* input,
                                          const Activations& a, Element* activation_gradient,
                                          Gradient* gradient, bool overwrites,
                                          const GradientScratch& scratch) {
  const Element* p = parameters;
  Gradient* g = gradient;
  Element *dr = activation_gradient, *dqkv = scratch.wide;
  Element* narrow = scratch.narrow;  // dL/d(attention), then dL/d(ln1)
  const std::int64_t rows = s_ * t_;
  matmul_.template weight_gradient<Element>(dr, a.attention, g + layer_.projection_weight,
                                            overwrites, rows, c_, c_, 0, stream_);
  matmul_.template input_gradient<Element>(dr, p + layer_.projection_weight, narrow, rows, c_, c_,
                                           0, stream_);
  const AttentionSizes sizes = attention_sizes();
  attention_backward<Element>(sizes, side_by_side<Element>(sizes, a.qkv), a.attention,
                              a.log_sum_exp, narrow, dqkv, scratch.dots, stream_);
  matmul_.template weight_gradient<Element>(dqkv, a.ln1, g + layer_.qkv_weight, overwrites, rows,
                                            c_, 3 * c_, 0, stream_);
  column_sums<Element>(dqkv, g + layer_.qkv_bias, overwrites, rows, 3 * c_, workspace_.kernels,
                       stream_);
  matmul_.template input_gradient<Element>(dqkv, p + layer_.qkv_weight, narrow, rows, c_, 3 * c_, 0,
                                           stream_);
  const NormSums<Gradient> sums{g + layer_.norm1_weight, g + layer_.norm1_bias, overwrites};
  norm_backward<Element>(narrow, input, p + layer_.norm1_weight, a.norm1, dr, true, sums, rows, c_,
                         workspace_.kernels, stream_);
}

template <class Element>
void GptCuda<Element>::backward_layer(const Element* parameters, const Element* input,
                                      const TensorAddresses& at, bool makes_gelu,
                                      Element* activation_gradient, std::byte* gradient,
                                      bool overwrites, const GradientScratch& scratch) {
  const Activations a = activations(at);
  with_gradient(gradient, [&](auto* sums) {
    backward_feed_forward(parameters, a, makes_gelu, activation_gradient, sums, overwrites,
                          scratch);
    backward_attention(parameters, input, a, activation_gradient, sums, overwrites, scratch);
  });
}

template <class Element>
void GptCuda<Element>::final_norm(const Element* parameters, const Element* hidden,
                                  const RowStatistics& statistics, Element* output,
                                  std::int64_t rows) {
  norm_forward<Element>(hidden, parameters + embedding_.norm_weight,
                        parameters + embedding_.norm_bias, output, statistics,
                        NormParts::statistics_and_output, epsilon_, rows, c_, stream_);
}

template <class Element>
void GptCuda<Element>::final_norm_backward(const Element* parameters, const Element* norm_gradient,
                                           const RowStatistics& statistics, Element* hidden,
                                           std::byte* head_gradient, bool overwrites,
                                           std::int64_t rows) {
  with_gradient(head_gradient, [&](auto* sums) {
    const NormSums<std::remove_pointer_t<decltype(sums)>> norm_sums{
        sums + embedding_.norm_weight, sums + embedding_.norm_bias, overwrites};
    norm_backward<Element>(norm_gradient, hidden, parameters + embedding_.norm_weight, statistics,
                           hidden, false, norm_sums, rows, c_, workspace_.kernels, stream_);
  });
}

template class GptCuda<float>;
template class GptCuda<bf16>;

}  // namespace spillway::cuda
