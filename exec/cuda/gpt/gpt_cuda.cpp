#include "exec/cuda/gpt/gpt_cuda.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/errors.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

bool has(SavedMask mask, SavedMask tensor) { return (mask & tensor) != 0; }

const Problem& supported(const Problem& problem) {
  const ModelSpec& model = problem.model;
  if (model.architecture != Architecture::gpt) {
    throw InputError(fmt::format("the CUDA backend trains GPT models only, not '{}'", model.name),
                     "simulate this model, or train one of the GPT models");
  }
  problem.validate();
  if (model.hidden % 8 != 0 || model.ffn % 8 != 0) {
    throw InputError(fmt::format("the CUDA backend computes widths that are multiples of 8; {} has "
                                 "hidden {} and ffn {}",
                                 model.name, model.hidden, model.ffn),
                     "choose multiples of 8 (of 64, to be fast)");
  }
  require_attention_head(model.hidden, model.heads);
  SPILLWAY_ASSERT(problem.backend() == Backend::cuda, "planned for another backend");
  return problem;
}

// Columns of the widest gradient that backward holds of a token.
std::int64_t wide_columns(const ModelSpec& model) { return std::max(model.ffn, 3 * model.hidden); }

std::size_t kernel_workspace_bytes(const Problem& problem) {
  const ModelSpec& model = problem.model;
  return cuda::workspace_bytes(
      model.hidden, wide_columns(model),
      std::max(unit_elements(model, 0), unit_elements(model, model.layers)));
}

std::size_t bias_sum_bytes(const Problem& problem) {
  return static_cast<std::size_t>(problem.model.ffn) * problem.activation_bytes();
}

}  // namespace

std::uint64_t gpt_workspace_bytes(const Problem& problem) {
  const auto rows =
      static_cast<std::uint64_t>(problem.workload.micro_batch * problem.workload.sequence);
  return round_up(Matmul::workspace_bytes, 256) + round_up(kernel_workspace_bytes(problem), 256) +
         round_up(bias_sum_bytes(problem), 256) + round_up(rows * sizeof(double), 256);
}

GptWorkspace GptWorkspace::carve(const Problem& problem, std::byte* memory) {
  SPILLWAY_ASSERT(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
  GptWorkspace workspace;
  workspace.matmul = memory;
  memory += round_up(Matmul::workspace_bytes, 256);
  workspace.kernels = {memory, kernel_workspace_bytes(problem)};
  memory += round_up(workspace.kernels.bytes, 256);
  workspace.bias_sums = memory;
  memory += round_up(bias_sum_bytes(problem), 256);
  workspace.token_losses = reinterpret_cast<double*>(memory);
  return workspace;
}

template <class Element>
GptCuda<Element>::GptCuda(const Problem& problem, const GptWorkspace& workspace,
                          cudaStream_t stream, AttentionKernels attention,
                          GeluBackward gelu_backward)
    : problem_(supported(problem)),
      workspace_(workspace),
      stream_(stream),
      attention_(attention),
      gelu_backward_(gelu_backward),
      matmul_(workspace.matmul),
      b_(problem.workload.micro_batch),
      s_(problem.workload.sequences_at_once),
      t_(problem.workload.sequence),
      c_(problem.model.hidden),
      f_(problem.model.ffn),
      v_(problem.model.vocabulary),
      heads_(problem.model.heads),
      head_(head_shape(problem)) {
  SPILLWAY_ASSERT(problem.parameter_bytes() == sizeof(Element));
  layer_ = layer_offsets(problem.model);
  embedding_ = embedding_offsets(problem.model);
  for (const SavedLayout& saved : saved_layout(problem, gpt_saved::all, 1))
    tensor_bytes_[bit_of(saved.tensor)] = saved.stride;
}

template <class Element>
std::uint64_t GptCuda<Element>::place(TensorAddresses& at, std::byte* buffer, SavedMask mask,
                                      std::int64_t sequences, std::int64_t first) const {
  std::uint64_t offset = 0;
  for (std::size_t bit = 0; bit < tensor_bytes_.size(); ++bit) {
    if ((mask >> bit & 1) == 0) continue;
    at[bit] = buffer + offset + static_cast<std::uint64_t>(first) * tensor_bytes_[bit];
    offset +=
        round_up(static_cast<std::uint64_t>(sequences) * tensor_bytes_[bit], buffer_alignment);
  }
  return offset;
}

template <class Element>
typename GptCuda<Element>::Activations GptCuda<Element>::activations(
    const TensorAddresses& at) const {
  const auto tensor = [&](SavedMask which) {
    return reinterpret_cast<Element*>(at[bit_of(which)]);
  };
  Activations a{};
  a.ln1 = tensor(gpt_saved::ln1);
  a.qkv = tensor(gpt_saved::qkv);
  a.attention = tensor(gpt_saved::attention);
  a.residual = tensor(gpt_saved::residual);
  a.ln2 = tensor(gpt_saved::ln2);
  a.fc = tensor(gpt_saved::fc);
  a.gelu = tensor(gpt_saved::gelu);
  float* const statistics = reinterpret_cast<float*>(at[bit_of(gpt_saved::statistics)]);
  const std::int64_t stride = (4 + heads_) * t_;
  a.norm1 = {statistics, statistics + t_, t_, stride};
  a.norm2 = {statistics + 2 * t_, statistics + 3 * t_, t_, stride};
  a.log_sum_exp = statistics + 4 * t_;
  return a;
}

template <class Element>
AttentionSizes GptCuda<Element>::attention_sizes() const {
  return {s_, t_, c_, heads_, (4 + heads_) * t_, attention_};
}

template <class Element>
void GptCuda<Element>::embed_forward(const Element* parameters, const Text& text, Element* output) {
  cuda::embed_forward(parameters + embedding_.token_table, parameters + embedding_.position_table,
                      text.tokens, output, b_ * t_, t_, c_, stream_);
}

template <class Element>
void GptCuda<Element>::norm(const Element* input, const Element* weight, const Element* bias,
                            Element* output, const RowStatistics& statistics, bool needs_statistics,
                            bool needs_output) {
  if (!needs_statistics && !needs_output) return;
  const NormParts parts = !needs_output       ? NormParts::statistics
                          : !needs_statistics ? NormParts::output
                                              : NormParts::statistics_and_output;
  norm_forward(input, weight, bias, output, statistics, parts, s_ * t_, c_, stream_);
}

template <class Element>
void GptCuda<Element>::compute_activations(const Element* parameters, const Element* input,
                                           SavedMask available, const Activations& a) {
  const Element* p = parameters;
  const std::int64_t rows = s_ * t_;
  const auto missing = [&](SavedMask tensor) { return !has(available, tensor); };
  const bool no_statistics = missing(gpt_saved::statistics);
  norm(input, p + layer_.norm1_weight, p + layer_.norm1_bias, a.ln1, a.norm1, no_statistics,
       missing(gpt_saved::ln1));
  if (missing(gpt_saved::qkv)) {
    matmul_.linear<Element>(a.ln1, p + layer_.qkv_weight, p + layer_.qkv_bias, nullptr, a.qkv, rows,
                            c_, 3 * c_, 0, stream_);
  }
  if (missing(gpt_saved::attention) || no_statistics) {
    attention_forward<Element>(attention_sizes(), a.qkv,
                               missing(gpt_saved::attention) ? a.attention : nullptr,
                               no_statistics ? a.log_sum_exp : nullptr, stream_);
  }
  if (missing(gpt_saved::residual)) {
    matmul_.linear<Element>(a.attention, p + layer_.projection_weight, p + layer_.projection_bias,
                            input, a.residual, rows, c_, c_, 0, stream_);
  }
  norm(a.residual, p + layer_.norm2_weight, p + layer_.norm2_bias, a.ln2, a.norm2, no_statistics,
       missing(gpt_saved::ln2));
  if (missing(gpt_saved::fc)) {
    matmul_.linear<Element>(a.ln2, p + layer_.fc_weight, p + layer_.fc_bias, nullptr, a.fc, rows,
                            c_, f_, 0, stream_);
  }
  if (missing(gpt_saved::gelu)) gelu_forward<Element>(a.fc, a.gelu, rows * f_, stream_);
}

template <class Element>
void GptCuda<Element>::compute_output(const Element* parameters, const Activations& a,
                                      Element* output) {
  matmul_.linear<Element>(a.gelu, parameters + layer_.fc_projection_weight,
                          parameters + layer_.fc_projection_bias, a.residual, output, s_ * t_, f_,
                          c_, 0, stream_);
}

template <class Element>
void GptCuda<Element>::layer_forward(const Element* parameters, const Element* input,
                                     Element* output, std::byte* saved, SavedMask saves,
                                     std::byte* scratch) {
  SPILLWAY_ASSERT(saved != nullptr || saves == saved_none);
  for (std::int64_t first = 0; first < b_; first += s_) {
    TensorAddresses at{};
    place(at, saved, saves, b_, first);
    place(at, scratch, static_cast<SavedMask>(gpt_saved::all & ~saves), s_, 0);
    const Activations a = activations(at);
    const std::int64_t begin = first * t_ * c_;
    compute_activations(parameters, input + begin, saved_none, a);
    compute_output(parameters, a, output + begin);
  }
}

template <class Element>
typename GptCuda<Element>::BackwardScratch GptCuda<Element>::carve_backward(
    std::byte* scratch, SavedMask available) const {
  const std::byte* const begin = scratch;
  BackwardScratch parts{};
  scratch +=
      place(parts.recomputed, scratch, static_cast<SavedMask>(gpt_saved::all & ~available), s_, 0);
  parts.wide = reinterpret_cast<Element*>(scratch);
  parts.narrow = parts.wide + s_ * t_ * wide_columns(problem_.model);
  parts.dots = reinterpret_cast<float*>(parts.narrow + s_ * t_ * c_);
  const auto* const end = reinterpret_cast<const std::byte*>(parts.dots + s_ * t_ * heads_);
  SPILLWAY_ASSERT(static_cast<std::uint64_t>(end - begin) <=
                  backward_scratch_bytes(problem_, available));
  return parts;
}

template <class Element>
void GptCuda<Element>::layer_backward(const Element* parameters, const Element* input,
                                      const std::byte* saved, SavedMask available,
                                      bool recomputes_output, Element* activation_gradient,
                                      std::byte* gradient, bool first_micro_batch,
                                      std::byte* scratch) {
  SPILLWAY_ASSERT(saved != nullptr || available == saved_none);
  const BackwardScratch parts = carve_backward(scratch, available);
  with_gradient(gradient, [&](auto* sums) {
    if (first_micro_batch)
      zero(sums, problem_.model.layer_parameters(), unit_elements(problem_.model, 0));
    for (std::int64_t first = 0; first < b_; first += s_) {
      TensorAddresses at = parts.recomputed;
      // What is available is only read.
      place(at, const_cast<std::byte*>(saved), available, b_, first);
      const Activations a = activations(at);
      const std::int64_t begin = first * t_ * c_;
      // GELU's output, where nothing else needs it before, is made by GELU's backward.
      const bool later = !has(available, gpt_saved::gelu) && !recomputes_output;
      compute_activations(parameters, input + begin,
                          later ? static_cast<SavedMask>(available | gpt_saved::gelu) : available,
                          a);
      if (recomputes_output) compute_output(parameters, a, parts.narrow);
      Element* const dx = activation_gradient + begin;
      const bool overwrites = first_micro_batch && first == 0;
      backward_feed_forward(parameters, a, later, dx, sums, overwrites, parts);
      backward_attention(parameters, input + begin, a, dx, sums, overwrites, parts);
    }
  });
}

// y = r + fcproj(gelu(fc(ln2(r)))): activation_gradient dL/dy becomes dL/dr. What sums of a bias's
// gradient are taken of is in the registers of a kernel that reads or writes it anyway: dL/dfc in
// GELU's, dL/dy and dL/dr, which is the gradient of the bias of attention's projection, too, in the
// norm's.
template <class Element>
template <class Gradient>
void GptCuda<Element>::backward_feed_forward(const Element* parameters, const Activations& a,
                                             bool needs_gelu, Element* activation_gradient,
                                             Gradient* gradient, bool overwrites,
                                             const BackwardScratch& scratch) {
  const Element* p = parameters;
  Gradient* g = gradient;
  Element *dy = activation_gradient, *dfc = scratch.wide, *dln2 = scratch.narrow;
  const std::int64_t rows = s_ * t_;
  gelu_backward_by<Element, Gradient>(
      gelu_backward_, matmul_,
      {dy, p + layer_.fc_projection_weight, a.fc, dfc, needs_gelu ? a.gelu : nullptr,
       g + layer_.fc_bias, overwrites, reinterpret_cast<Element*>(workspace_.bias_sums), rows, c_,
       f_},
      workspace_.kernels, stream_);
  matmul_.weight_gradient<Element>(dy, a.gelu, g + layer_.fc_projection_weight, overwrites, rows,
                                   f_, c_, 0, stream_);
  matmul_.weight_gradient<Element>(dfc, a.ln2, g + layer_.fc_weight, overwrites, rows, c_, f_, 0,
                                   stream_);
  matmul_.input_gradient<Element>(dfc, p + layer_.fc_weight, dln2, rows, c_, f_, 0, stream_);
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
                                          const BackwardScratch& scratch) {
  const Element* p = parameters;
  Gradient* g = gradient;
  Element *dr = activation_gradient, *dqkv = scratch.wide;
  Element* narrow = scratch.narrow;  // dL/d(attention), then dL/d(ln1)
  const std::int64_t rows = s_ * t_;
  matmul_.weight_gradient<Element>(dr, a.attention, g + layer_.projection_weight, overwrites, rows,
                                   c_, c_, 0, stream_);
  matmul_.input_gradient<Element>(dr, p + layer_.projection_weight, narrow, rows, c_, c_, 0,
                                  stream_);
  attention_backward<Element>(attention_sizes(), a.qkv, a.attention, a.log_sum_exp, narrow, dqkv,
                              scratch.dots, stream_);
  matmul_.weight_gradient<Element>(dqkv, a.ln1, g + layer_.qkv_weight, overwrites, rows, c_, 3 * c_,
                                   0, stream_);
  column_sums<Element>(dqkv, g + layer_.qkv_bias, overwrites, rows, 3 * c_, workspace_.kernels,
                       stream_);
  matmul_.input_gradient<Element>(dqkv, p + layer_.qkv_weight, narrow, rows, c_, 3 * c_, 0,
                                  stream_);
  const NormSums<Gradient> sums{g + layer_.norm1_weight, g + layer_.norm1_bias, overwrites};
  norm_backward<Element>(narrow, input, p + layer_.norm1_weight, a.norm1, dr, true, sums, rows, c_,
                         workspace_.kernels, stream_);
}

template <class Element>
void GptCuda<Element>::embed_backward(const Text& text, const Element* activation_gradient,
                                      std::byte* gradient, bool first_micro_batch) {
  with_gradient(gradient, [&](auto* sums) {
    if (first_micro_batch) zero(sums, 0, unit_elements(problem_.model, problem_.model.layers));
    cuda::embed_backward<Element>(text.tokens, text.order, activation_gradient,
                                  sums + embedding_.token_table, sums + embedding_.position_table,
                                  b_, t_, c_, stream_);
  });
}

template class GptCuda<float>;
template class GptCuda<bf16>;

#define SPILLWAY_LAYER_BACKWARD(Element, Gradient)                                               \
  template void GptCuda<Element>::backward_feed_forward(                                         \
      const Element*, const GptCuda<Element>::Activations&, bool, Element*, Gradient*, bool,     \
      const GptCuda<Element>::BackwardScratch&);                                                 \
  template void GptCuda<Element>::backward_attention(                                            \
      const Element*, const Element*, const GptCuda<Element>::Activations&, Element*, Gradient*, \
      bool, const GptCuda<Element>::BackwardScratch&);
SPILLWAY_LAYER_BACKWARD(float, float)
SPILLWAY_LAYER_BACKWARD(bf16, float)
SPILLWAY_LAYER_BACKWARD(bf16, bf16)
#undef SPILLWAY_LAYER_BACKWARD

}  // namespace spillway::cuda
