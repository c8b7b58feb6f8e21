#include "exec/cuda/llama/llama_cuda.hpp"

#include "base/errors.hpp"
#include "exec/cpu/rotary_table.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

// The cosines and sines of a sequence's positions, brought to `memory`; and the heads they turn.
RotaryShape rotary_shape(const Problem& problem, float* memory, cudaStream_t stream) {
  const ModelSpec& model = problem.model;
  const RotaryTable table = rotary_table(model, problem.workload.sequence);
  float* const sines = memory + table.cosines.size();
  const auto upload = [&](float* to, const std::vector<float>& from) {
    SPILLWAY_CUDA(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(float),
                                  cudaMemcpyHostToDevice, stream));
  };
  upload(memory, table.cosines);
  upload(sines, table.sines);
  SPILLWAY_CUDA(cudaStreamSynchronize(stream));
  return {problem.workload.sequences_at_once,
          problem.workload.sequence,
          model.heads,
          model.kv_heads,
          model.width_of_head(),
          memory,
          sines};
}

NormParts parts_of(bool statistics, bool output) {
  return !output       ? NormParts::statistics
         : !statistics ? NormParts::output
                       : NormParts::statistics_and_output;
}

}  // namespace

template <class Element>
typename LlamaCuda<Element>::Tables LlamaCuda<Element>::tables(const Problem& problem) {
  SPILLWAY_ASSERT(problem.model.architecture == Architecture::llama);
  const LlamaTableOffsets offsets = llama_table_offsets(problem.model);
  return {offsets.token_table, {}, offsets.head};
}

template <class Element>
LlamaCuda<Element>::LlamaCuda(const Problem& problem, const ModelWorkspace& workspace,
                              cudaStream_t stream, AttentionKernels attention)
    : Base(problem, workspace, stream, attention, tables(problem), llama_saved::product),
      layer_(llama_layer_offsets(problem.model)),
      final_norm_(llama_table_offsets(problem.model).final_norm),
      qk_norm_(problem.model.qk_norm),
      attention_width_(problem.model.attention_width()),
      qkv_width_(problem.model.qkv_width()),
      query_key_stride_(qk_norm_ ? attention_width_ + problem.model.kv_width() : qkv_width_),
      rotary_(rotary_shape(problem, workspace.rotary, stream)) {}

template <class Element>
typename LlamaCuda<Element>::Activations LlamaCuda<Element>::activations(
    const TensorAddresses& at) const {
  Activations a{};
  a.norm1 = tensor(at, llama_saved::norm1);
  a.qkv = tensor(at, llama_saved::qkv);
  a.query_key = qk_norm_ ? tensor(at, llama_saved::rotated) : a.qkv;
  a.attention = tensor(at, llama_saved::attention);
  a.residual = tensor(at, llama_saved::residual);
  a.norm2 = tensor(at, llama_saved::norm2);
  a.gate_up = tensor(at, llama_saved::gate_up);
  a.product = tensor(at, llama_saved::product);
  float* const statistics = Base::template tensor<float>(at, llama_saved::statistics);
  const std::int64_t stride = statistics_stride();
  a.statistics1 = {nullptr, statistics, t_, stride};
  a.statistics2 = {nullptr, statistics + t_, t_, stride};
  a.log_sum_exp = statistics + 2 * t_;
  a.head_statistics = {nullptr, a.log_sum_exp + rotary_.q_heads * t_, t_, stride};
  return a;
}

template <class Element>
AttentionInput<Element> LlamaCuda<Element>::attention_input(const Activations& a) const {
  return {a.query_key, a.qkv + rotary_.columns(), query_key_stride_, qkv_width_};
}

template <class Element>
HeadNorm<Element> LlamaCuda<Element>::head_norm(const Element* parameters,
                                                const Activations& a) const {
  return {parameters + layer_.query_norm, parameters + layer_.key_norm, a.head_statistics,
          epsilon_};
}

template <class Element>
void LlamaCuda<Element>::norm(const Element* input, const Element* weight, Element* output,
                              const RowStatistics& statistics, bool needs_statistics,
                              bool needs_output) {
  if (!needs_statistics && !needs_output) return;
  rms_norm_forward<Element>(input, weight, output, statistics,
                            parts_of(needs_statistics, needs_output), epsilon_, s_ * t_, c_,
                            stream_);
}

template <class Element>
void LlamaCuda<Element>::compute_qkv(const Element* parameters, SavedMask available,
                                     const Activations& a) {
  const Element* p = parameters;
  const auto missing = [&](SavedMask bit) { return (available & bit) == 0; };
  if (missing(llama_saved::qkv)) {
    matmul_.template linear<Element>(a.norm1, p + layer_.qkv,
                                     layer_.qkv_bias < 0 ? nullptr : p + layer_.qkv_bias, nullptr,
                                     a.qkv, s_ * t_, c_, qkv_width_, 0, stream_);
    if (!qk_norm_) rotate_heads<Element>(rotary_, a.qkv, qkv_width_, Turn::forward, stream_);
  }
  const bool statistics = missing(llama_saved::statistics), output = missing(llama_saved::rotated);
  if (!qk_norm_ || (!statistics && !output)) return;
  head_norm_forward<Element>(rotary_, head_norm(p, a), a.qkv, qkv_width_, a.query_key,
                             parts_of(statistics, output), stream_);
}

template <class Element>
void LlamaCuda<Element>::compute_activations(const Element* parameters, const Element* input,
                                             SavedMask available, const TensorAddresses& at) {
  const Activations a = activations(at);
  const Element* p = parameters;
  const std::int64_t rows = s_ * t_;
  const auto missing = [&](SavedMask bit) { return (available & bit) == 0; };
  const bool no_statistics = missing(llama_saved::statistics);
  norm(input, p + layer_.norm1, a.norm1, a.statistics1, no_statistics, missing(llama_saved::norm1));
  compute_qkv(parameters, available, a);
  if (missing(llama_saved::attention) || no_statistics) {
    attention_forward<Element>(attention_sizes(), attention_input(a),
                               missing(llama_saved::attention) ? a.attention : nullptr,
                               no_statistics ? a.log_sum_exp : nullptr, stream_);
  }
  if (missing(llama_saved::residual)) {
    matmul_.template linear<Element>(a.attention, p + layer_.projection, nullptr, input, a.residual,
                                     rows, attention_width_, c_, 0, stream_);
  }
  norm(a.residual, p + layer_.norm2, a.norm2, a.statistics2, no_statistics,
       missing(llama_saved::norm2));
  if (missing(llama_saved::gate_up)) {
    matmul_.template linear<Element>(a.norm2, p + layer_.gate_up, nullptr, nullptr, a.gate_up, rows,
                                     c_, 2 * f_, 0, stream_);
  }
  if (missing(llama_saved::product))
    swiglu_forward<Element>(a.gate_up, a.product, rows, f_, stream_);
}

template <class Element>
void LlamaCuda<Element>::compute_output(const Element* parameters, const TensorAddresses& at,
                                        Element* output) {
  const Activations a = activations(at);
  matmul_.template linear<Element>(a.product, parameters + layer_.down, nullptr, a.residual, output,
                                   s_ * t_, f_, c_, 0, stream_);
}

template <class Element>
void LlamaCuda<Element>::backward_layer(const Element* parameters, const Element* input,
                                        const TensorAddresses& at, bool makes_product,
                                        Element* activation_gradient, std::byte* gradient,
                                        bool overwrites, const GradientScratch& scratch) {
  const Activations a = activations(at);
  with_gradient(gradient, [&](auto* sums) {
    backward_feed_forward(parameters, a, makes_product, activation_gradient, sums, overwrites,
                          scratch);
    backward_attention(parameters, input, a, activation_gradient, sums, overwrites, scratch);
  });
}

// y = r + down(silu(gate h) up h), h = norm2(r): activation_gradient dL/dy becomes dL/dr.
template <class Element>
template <class Gradient>
void LlamaCuda<Element>::backward_feed_forward(const Element* parameters, const Activations& a,
                                               bool makes_product, Element* activation_gradient,
                                               Gradient* gradient, bool overwrites,
                                               const GradientScratch& scratch) {
  const Element* p = parameters;
  Gradient* g = gradient;
  Element *dy = activation_gradient, *dgate_up = scratch.wide, *dh = scratch.narrow;
  const std::int64_t rows = s_ * t_;
  // The product's gradient, where up's will be.
  matmul_.template input_gradient<Element>(dy, p + layer_.down, dgate_up + f_, rows, f_, c_, 0,
                                           stream_, 2 * f_);
  swiglu_backward<Element>(a.gate_up, dgate_up, makes_product ? a.product : nullptr, rows, f_,
                           stream_);
  matmul_.template weight_gradient<Element>(dy, a.product, g + layer_.down, overwrites, rows, f_,
                                            c_, 0, stream_);
  matmul_.template weight_gradient<Element>(dgate_up, a.norm2, g + layer_.gate_up, overwrites, rows,
                                            c_, 2 * f_, 0, stream_);
  matmul_.template input_gradient<Element>(dgate_up, p + layer_.gate_up, dh, rows, c_, 2 * f_, 0,
                                           stream_);
  rms_norm_backward<Element>(dh, a.residual, p + layer_.norm2, a.statistics2, dy, true,
                             g + layer_.norm2, overwrites, rows, c_, workspace_.kernels, stream_);
}

// r = x + projection(attention(qkv(norm1(x)))): activation_gradient dL/dr becomes dL/dx.
template <class Element>
template <class Gradient>
void LlamaCuda<Element>::backward_attention(const Element* parameters, const Element* input,
                                            const Activations& a, Element* activation_gradient,
                                            Gradient* gradient, bool overwrites,
                                            const GradientScratch& scratch) {
  const Element* p = parameters;
  Gradient* g = gradient;
  Element *dr = activation_gradient, *dqkv = scratch.wide;
  Element* narrow = scratch.narrow;  // dL/d(attention), then dL/d(norm1)
  const std::int64_t rows = s_ * t_;
  matmul_.template weight_gradient<Element>(dr, a.attention, g + layer_.projection, overwrites,
                                            rows, attention_width_, c_, 0, stream_);
  matmul_.template input_gradient<Element>(dr, p + layer_.projection, narrow, rows,
                                           attention_width_, c_, 0, stream_);
  attention_backward<Element>(attention_sizes(), attention_input(a), a.attention, a.log_sum_exp,
                              narrow, dqkv, scratch.dots, stream_);
  if (qk_norm_) {
    head_norm_backward<Element>(rotary_, head_norm(p, a), a.qkv, dqkv, qkv_width_,
                                g + layer_.query_norm, g + layer_.key_norm, overwrites,
                                workspace_.kernels, stream_);
  } else {
    rotate_heads<Element>(rotary_, dqkv, qkv_width_, Turn::back, stream_);
  }
  matmul_.template weight_gradient<Element>(dqkv, a.norm1, g + layer_.qkv, overwrites, rows, c_,
                                            qkv_width_, 0, stream_);
  if (layer_.qkv_bias >= 0) {
    column_sums<Element>(dqkv, g + layer_.qkv_bias, overwrites, rows, qkv_width_,
                         workspace_.kernels, stream_);
  }
  matmul_.template input_gradient<Element>(dqkv, p + layer_.qkv, narrow, rows, c_, qkv_width_, 0,
                                           stream_);
  rms_norm_backward<Element>(narrow, input, p + layer_.norm1, a.statistics1, dr, true,
                             g + layer_.norm1, overwrites, rows, c_, workspace_.kernels, stream_);
}

template <class Element>
void LlamaCuda<Element>::final_norm(const Element* parameters, const Element* hidden,
                                    const RowStatistics& statistics, Element* output,
                                    std::int64_t rows) {
  rms_norm_forward<Element>(hidden, parameters + final_norm_, output, statistics,
                            NormParts::statistics_and_output, epsilon_, rows, c_, stream_);
}

template <class Element>
void LlamaCuda<Element>::final_norm_backward(const Element* parameters,
                                             const Element* norm_gradient,
                                             const RowStatistics& statistics, Element* hidden,
                                             std::byte* head_gradient, bool overwrites,
                                             std::int64_t rows) {
  with_gradient(head_gradient, [&](auto* sums) {
    rms_norm_backward<Element>(norm_gradient, hidden, parameters + final_norm_, statistics, hidden,
                               false, sums + final_norm_, overwrites, rows, c_, workspace_.kernels,
                               stream_);
  });
}

template class LlamaCuda<float>;
template class LlamaCuda<bf16>;

}  // namespace spillway::cuda
