#include "exec/cuda/model/model_cuda.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/gpt/gpt_cuda.hpp"
#include "exec/cuda/llama/llama_cuda.hpp"

namespace spillway::cuda {

namespace {

const Problem& supported(const Problem& problem) {
  const ModelSpec& model = problem.model;
  problem.validate();
  if (model.hidden % 8 != 0 || model.ffn % 8 != 0) {
    throw InputError(fmt::format("the CUDA backend computes widths that are multiples of 8; {} has "
                                 "hidden {} and ffn {}",
                                 model.name, model.hidden, model.ffn),
                     "choose multiples of 8 (of 64, to be fast)");
  }
  require_attention_head(model.attention_width(), model.heads);
  SPILLWAY_ASSERT(problem.backend() == Backend::cuda, "planned for another backend");
  return problem;
}

// Columns of the widest gradient that backward holds of a token, and of the other.
std::int64_t wide_columns(const ModelSpec& model) {
  return std::max(model.fc_width(), model.qkv_width());
}
// One past the last element of a layer that is trained, without padding.
std::int64_t trained_end(const ModelSpec& model) {
  std::int64_t end = 0;
  for (const TensorLayout& tensor : unit_layout(model, model.layers - 1))
    if (tensor.trained) end = tensor.offset + tensor.elements();
  return end;
}

std::int64_t narrow_columns(const ModelSpec& model) {
  return std::max(model.hidden, model.attention_width());
}

std::size_t kernel_workspace_bytes(const Problem& problem) {
  const ModelSpec& model = problem.model;
  return cuda::workspace_bytes(std::max(model.hidden, model.width_of_head()), wide_columns(model),
                               largest_trained_elements(model));
}

std::size_t bias_sum_bytes(const Problem& problem) {
  if (problem.model.architecture != Architecture::gpt) return 0;
  return static_cast<std::size_t>(problem.model.ffn) * problem.activation_bytes();
}

std::size_t rotary_bytes(const Problem& problem) {
  if (problem.model.architecture != Architecture::llama) return 0;
  return static_cast<std::size_t>(problem.workload.sequence * problem.model.width_of_head()) *
         sizeof(float);
}

constexpr std::size_t noise_bytes = 256;
static_assert(sizeof(NoiseKey) <= noise_bytes);

}  // namespace

std::uint64_t model_workspace_bytes(const Problem& problem) {
  const auto rows =
      static_cast<std::uint64_t>(problem.workload.micro_batch * problem.workload.sequence);
  return round_up(Matmul::workspace_bytes, 256) + round_up(kernel_workspace_bytes(problem), 256) +
         round_up(bias_sum_bytes(problem), 256) + round_up(rotary_bytes(problem), 256) +
         noise_bytes + round_up(rows * sizeof(double), 256);
}

ModelWorkspace ModelWorkspace::carve(const Problem& problem, std::byte* memory) {
  SPILLWAY_ASSERT(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
  ModelWorkspace workspace;
  workspace.matmul = memory;
  memory += round_up(Matmul::workspace_bytes, 256);
  workspace.kernels = {memory, kernel_workspace_bytes(problem)};
  memory += round_up(workspace.kernels.bytes, 256);
  workspace.bias_sums = memory;
  memory += round_up(bias_sum_bytes(problem), 256);
  workspace.rotary = reinterpret_cast<float*>(memory);
  memory += round_up(rotary_bytes(problem), 256);
  workspace.step_noise = reinterpret_cast<NoiseKey*>(memory);
  memory += noise_bytes;
  workspace.token_losses = reinterpret_cast<double*>(memory);
  return workspace;
}

template <class Element>
ModelCuda<Element>::ModelCuda(const Problem& problem, const ModelWorkspace& workspace,
                              cudaStream_t stream, AttentionKernels attention, const Tables& tables,
                              const Layer& layer, const Norm& final_norm)
    : problem_(supported(problem)),
      workspace_(workspace),
      stream_(stream),
      matmul_(workspace.matmul),
      products_(problem, matmul_, workspace.step_noise, stream),
      layer_(layer),
      b_(problem.workload.micro_batch),
      s_(problem.workload.sequences_at_once),
      t_(problem.workload.sequence),
      c_(problem.model.hidden),
      f_(problem.model.ffn),
      epsilon_(static_cast<float>(problem.model.norm_epsilon)),
      attention_(attention),
      tables_(tables),
      final_norm_(final_norm),
      adapter_widths_(adapter_widths(problem.model)),
      layer_end_(trained_end(problem.model)),
      layer_elements_(trained_elements(problem.model, problem.model.layers - 1)),
      v_(problem.model.vocabulary),
      head_(head_shape(problem, tables.head)) {
  SPILLWAY_ASSERT(problem.parameter_bytes() == sizeof(Element));
  for (const SavedLayout& saved : saved_layout(problem, saved_all(problem.model), 1)) {
    tensor_bytes_[bit_of(saved.tensor)] = saved.stride;
    if (saved.tensor == saved_statistics) statistics_width_ = saved.width;
  }
  for (const TensorLayout& tensor : unit_layout(problem.model, 0)) {
    if (tensor.rows != 1) continue;
    const bool follows =
        !vectors_.empty() && tensor.offset == vectors_.back().begin + vectors_.back().count;
    if (follows) {
      vectors_.back().count += tensor.columns;
    } else {
      vectors_.push_back({tensor.offset, tensor.columns});
    }
  }
}

template <class Element>
std::uint64_t ModelCuda<Element>::place(TensorAddresses& at, std::byte* buffer, SavedMask mask,
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
void ModelCuda<Element>::embed_forward(const Element* parameters, const Text& text,
                                       Element* output) {
  cuda::embed_forward<Element>(parameters + tables_.tokens,
                               tables_.positions ? parameters + *tables_.positions : nullptr,
                               text.tokens, text.starts, output, b_ * t_, t_, c_, stream_);
}

template <class Element>
void ModelCuda<Element>::begin_layer(const StepPlace& place) {
  if (problem_.model.lora_dropout == 0 || place.noise == nullptr) return;
  fetch_noise(place.noise, workspace_.step_noise, stream_);
}

template <class Element>
AttentionBorders ModelCuda<Element>::borders_from(const AttentionBorders& borders,
                                                  std::int64_t sequence) const {
  if (borders.starts == nullptr) return {};
  return {borders.starts + sequence * t_, borders.ends + sequence * t_};
}

template <class Element>
AdapterBatch<Element> ModelCuda<Element>::carve_adapters(std::byte* scratch,
                                                         const StepPlace& place) const {
  const std::int64_t rows = s_ * t_;
  auto* const first = reinterpret_cast<Element*>(scratch);
  AdapterBatch<Element> batch{.input = first,
                              .layer = place.layer,
                              .sequence = place.sequence,
                              .drops = place.noise != nullptr};
  // First, because its rows are read in packs.
  batch.product =
      first + (problem_.model.lora_dropout > 0 ? rows * adapter_widths_.input : std::int64_t{0});
  batch.gradient = batch.product + rows * adapter_widths_.ranks;
  return batch;
}

template <class Element>
void ModelCuda<Element>::layer_forward(const Element* parameters, const Element* input,
                                       Element* output, std::byte* saved, SavedMask saves,
                                       std::byte* scratch, const StepPlace& place_in_step) {
  SPILLWAY_ASSERT(saved != nullptr || saves == saved_none);
  begin_layer(place_in_step);
  for (std::int64_t first = 0; first < b_; first += s_) {
    TensorAddresses at{};
    place(at, saved, saves, b_, first);
    const std::uint64_t used = place(at, scratch, saved_others(problem_.model, saves), s_, 0);
    const std::int64_t begin = first * t_ * c_;
    KernelBatch batch{parameters, input + begin, activations(at),
                      carve_adapters(scratch + used, place_in_step),
                      borders_from(place_in_step.borders, first)};
    batch.adapters.sequence += first;
    compute_activations(batch, saved_none);
    compute_output(batch, output + begin);
  }
}

template <class Element>
typename ModelCuda<Element>::BackwardScratch ModelCuda<Element>::carve_backward(
    std::byte* scratch, SavedMask available, const StepPlace& place_in_step) const {
  BackwardScratch parts{};
  std::uint64_t used =
      place(parts.recomputed, scratch, saved_others(problem_.model, available), s_, 0);
  BatchGradients& gradients = parts.gradients;
  gradients.up = gradients.qkv = reinterpret_cast<Element*>(scratch + used);
  gradients.narrow = gradients.up + s_ * t_ * wide_columns(problem_.model);
  gradients.dots =
      reinterpret_cast<float*>(gradients.narrow + s_ * t_ * narrow_columns(problem_.model));
  const auto end_of = [&](const auto* behind) {
    return static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(behind) - scratch);
  };
  used = round_up(end_of(gradients.dots + s_ * t_ * problem_.model.heads), buffer_alignment);
  parts.adapters = carve_adapters(scratch + used, place_in_step);
  SPILLWAY_ASSERT(end_of(parts.adapters.gradient + s_ * t_ * adapter_widths_.ranks) <=
                  backward_scratch_bytes(problem_, available));
  return parts;
}

template <class Element>
void ModelCuda<Element>::layer_backward(const Element* parameters, const Element* input,
                                        const std::byte* saved, SavedMask available,
                                        bool recomputes_output, Element* activation_gradient,
                                        std::byte* gradient, bool first_micro_batch,
                                        std::byte* scratch, const StepPlace& place_in_step) {
  begin_layer(place_in_step);
  if (first_micro_batch)
    with_gradient(gradient, [&](auto* sums) { zero(sums, layer_end_, layer_elements_); });
  backward_micro_batch(parameters, input, saved, available, recomputes_output, activation_gradient,
                       gradient, first_micro_batch, {}, scratch, place_in_step);
}

template <class Element>
void ModelCuda<Element>::backward_micro_batch(const Element* parameters, const Element* input,
                                              const std::byte* saved, SavedMask available,
                                              bool recomputes_output, Element* activation_gradient,
                                              std::byte* gradient, bool overwrites,
                                              const WeightOperands& operands, std::byte* scratch,
                                              const StepPlace& place_in_step) {
  SPILLWAY_ASSERT(saved != nullptr || available == saved_none);
  const BackwardScratch parts = carve_backward(scratch, available, place_in_step);
  const bool weights_later = operands.sums != nullptr;
  const bool later = (available & saved_activated) == 0 && !recomputes_output;
  for (std::int64_t first = 0; first < b_; first += s_) {
    TensorAddresses at = parts.recomputed;
    BatchGradients gradients = parts.gradients;
    if (weights_later) {
      place(at, operands.activations, kept_for_weights(problem_, available), b_, first);
      gradients = kept_gradients(operands, first);
      gradients.narrow = parts.gradients.narrow;
      gradients.dots = parts.gradients.dots;
    }
    // What is available is only read.
    place(at, const_cast<std::byte*>(saved), available, b_, first);
    const std::int64_t begin = first * t_ * c_;
    KernelBatch batch{parameters, input + begin, activations(at), parts.adapters,
                      borders_from(place_in_step.borders, first)};
    batch.adapters.sequence += first;
    compute_activations(batch,
                        later ? static_cast<SavedMask>(available | saved_activated) : available);
    if (recomputes_output) compute_output(batch, gradients.narrow);
    backward_layer(batch, {activation_gradient + begin, gradient,
                           weights_later ? kept_sums(operands, first) : nullptr,
                           weights_later || (overwrites && first == 0), later, gradients});
  }
}

template <class Element>
void ModelCuda<Element>::embed_backward(const Text& text, const Element* activation_gradient,
                                        std::byte* gradient, bool first_micro_batch) {
  with_gradient(gradient, [&](auto* sums) {
    if (first_micro_batch)
      zero(sums, 0, trained_elements(problem_.model, embedding_unit(problem_.model)));
    const bool positions = tables_.positions && text.starts == nullptr;
    cuda::embed_backward<Element>(
        text.tokens, text.order, activation_gradient, sums + tables_.tokens,
        positions ? sums + *tables_.positions : nullptr, b_, t_, c_, stream_);
  });
}

template <class Element>
void ModelCuda<Element>::embed_backward_positions(const Text& positions,
                                                  const Element* activation_gradient,
                                                  std::byte* gradient) {
  SPILLWAY_ASSERT(has_position_table());
  with_gradient(gradient, [&](auto* sums) {
    using Gradient = std::remove_pointer_t<decltype(sums)>;
    cuda::embed_backward<Element, Gradient>(positions.tokens, positions.order, activation_gradient,
                                            sums + *tables_.positions, nullptr, b_, t_, c_,
                                            stream_);
  });
}

template <class Element>
std::unique_ptr<ModelCuda<Element>> make_model_cuda(const Problem& problem,
                                                    const ModelWorkspace& workspace,
                                                    cudaStream_t stream, AttentionKernels attention,
                                                    GeluBackward gelu_backward) {
  if (problem.model.architecture == Architecture::llama)
    return std::make_unique<LlamaCuda<Element>>(problem, workspace, stream, attention);
  return std::make_unique<GptCuda<Element>>(problem, workspace, stream, attention, gelu_backward);
}

template class ModelCuda<float>;
template class ModelCuda<bf16>;
#define SPILLWAY_MAKE_MODEL(Element)                            \
  template std::unique_ptr<ModelCuda<Element>> make_model_cuda( \
      const Problem&, const ModelWorkspace&, cudaStream_t, AttentionKernels, GeluBackward);
SPILLWAY_MAKE_MODEL(float)
SPILLWAY_MAKE_MODEL(bf16)
#undef SPILLWAY_MAKE_MODEL

}  // namespace spillway::cuda
