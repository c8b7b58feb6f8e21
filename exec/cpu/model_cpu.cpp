#include "exec/cpu/model_cpu.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/cpu/blas_threads.hpp"
#include "exec/cpu/gpt_cpu.hpp"
#include "exec/cpu/llama_cpu.hpp"
#include "policies/model/scratch.hpp"

namespace spillway {

namespace {

void check_supported(const Problem& problem) {
  problem.validate();
  SPILLWAY_ASSERT(problem.parameter_bytes() == sizeof(float), "the arithmetic is fp32");
  SPILLWAY_ASSERT(problem.backend() == Backend::cpu, "planned for another backend");
}

// Attention's scores (R, T) must fit where a tensor (T, F) will be.
AttentionShape attention_shape(const ModelSpec& model, std::int64_t tokens) {
  return {tokens,         model.heads,
          model.kv_heads, model.width_of_head(),
          model.window,   std::min({attention_chunk_rows, tokens, model.ffn})};
}

// Takes so many floats from the front of `scratch`.
float* take(float*& scratch, std::int64_t elements) {
  float* const part = scratch;
  scratch += elements;
  return part;
}

// Where the next buffer may begin in `scratch`, which is used up to `end`.
float* next_buffer(std::byte* scratch, float* end) {
  const auto used = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(end) - scratch);
  return reinterpret_cast<float*>(scratch + round_up(used, buffer_alignment));
}

}  // namespace

ModelCpu::ModelCpu(const Problem& problem, CpuVariant variant, bool rounds, const Tables& tables,
                   SavedMask score_space)
    : problem_(problem),
      kernels_(cpu_kernels(variant)),
      rounds_(rounds),
      b_(problem.workload.micro_batch),
      t_(problem.workload.sequence),
      c_(problem.model.hidden),
      f_(problem.model.ffn),
      attention_(attention_shape(problem.model, problem.workload.sequence)),
      epsilon_(static_cast<float>(problem.model.norm_epsilon)),
      tables_(tables),
      head_(tables.head, problem.model.hidden, problem.model.vocabulary),
      adapter_widths_(adapter_widths(problem.model)),
      score_space_(score_space),
      saved_all_(saved_all(problem.model)),
      weights_need_(activations_of_weights(problem)),
      gradient_widths_(output_gradient_widths(problem)),
      layer_elements_(trained_elements(problem.model, problem.model.layers - 1)),
      embedding_elements_(trained_elements(problem.model, embedding_unit(problem.model))),
      head_elements_(trained_elements(problem.model, head_unit(problem.model))) {
  use_blas_threads(1);
  for (const SavedLayout& saved : saved_layout(problem, saved_all_, 1))
    tensor_bytes_[bit_of(saved.tensor)] = saved.stride;
  for (unsigned mask = 0; mask <= saved_all_; ++mask)
    scratch_bytes_.push_back(backward_scratch_bytes(problem, static_cast<SavedMask>(mask)));
}

template <class Byte>
std::uint64_t ModelCpu::place(Addresses<Byte>& at, Byte* buffer, SavedMask mask,
                              std::int64_t sequences, std::int64_t sequence) const {
  std::uint64_t offset = 0;
  for (std::size_t bit = 0; bit < tensor_bytes_.size(); ++bit) {
    if ((mask >> bit & 1) == 0) continue;
    at[bit] = buffer + offset + static_cast<std::uint64_t>(sequence) * tensor_bytes_[bit];
    const std::uint64_t bytes = static_cast<std::uint64_t>(sequences) * tensor_bytes_[bit];
    offset += round_up(bytes, buffer_alignment);
  }
  return offset;
}

// Of model_cpu_next.cpp.
template std::uint64_t ModelCpu::place(Addresses<std::byte>&, std::byte*, SavedMask, std::int64_t,
                                       std::int64_t) const;

std::int32_t ModelCpu::checked(std::int32_t token) const {
  SPILLWAY_ASSERT(token >= 0 && token < problem_.model.vocabulary,
                  fmt::format("token {} of a vocabulary of {}", token, problem_.model.vocabulary));
  return token;
}

void ModelCpu::embed_forward(const float* parameters, const std::int32_t* tokens, float* output,
                             const std::int32_t* starts) const {
  for (std::int64_t row = 0; row < b_ * t_; ++row) {
    const float* token = parameters + tables_.tokens + checked(tokens[row]) * c_;
    if (tables_.positions) {
      const float* position = parameters + *tables_.positions + position_of(starts, row) * c_;
      kernels_.add(token, position, output + row * c_, c_);
    } else {
      std::copy_n(token, c_, output + row * c_);
    }
  }
}

void ModelCpu::layer_forward(const float* parameters, const float* input, float* output,
                             std::byte* saved, SavedMask saves, std::byte* scratch,
                             const DropoutPlace& dropout, const std::int32_t* starts) const {
  SPILLWAY_ASSERT(saved != nullptr || saves == saved_none);
  for (std::int64_t sequence = 0; sequence < b_; ++sequence) {
    const float* x = input + sequence * t_ * c_;
    LayerTensors tensors;
    if (starts != nullptr) tensors.starts = starts + sequence * t_;
    place(tensors.write, saved, saves, b_, sequence);
    const std::uint64_t used = place(tensors.write, scratch, others(saves), 1, 0);
    float* left = reinterpret_cast<float*>(scratch + used);
    tensors.adapters = carve_adapters(left, false, dropout);
    tensors.adapters.place.sequence += sequence;
    std::copy(tensors.write.begin(), tensors.write.end(), tensors.read.begin());
    compute_activations(parameters, x, saved_none, tensors,
                        tensor<float>(tensors.write, score_space_));
    compute_output(parameters, tensors, output + sequence * t_ * c_);
  }
}

ModelCpu::GradientScratch ModelCpu::carve_gradients(float*& scratch) const {
  GradientScratch parts{};
  parts.wide = take(scratch, t_ * std::max(problem_.model.fc_width(), problem_.model.qkv_width()));
  parts.narrow = take(scratch, t_ * std::max(c_, attention_.width()));
  parts.attention = take(scratch, 2 * attention_.chunk_rows * t_);
  const auto at = [&](OutputGradient which) -> float*& {
    return parts.of[static_cast<std::size_t>(which)];
  };
  at(OutputGradient::up) = at(OutputGradient::qkv) = parts.wide;
  at(OutputGradient::norm1) = at(OutputGradient::norm2) = parts.narrow;
  return parts;
}

OutputGradients ModelCpu::output_gradients(std::byte* at) const {
  OutputGradients gradients{};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradient_widths_[i] == 0) continue;
    gradients[i] = reinterpret_cast<float*>(at);
    at =
        reinterpret_cast<std::byte*>(next_buffer(at, gradients[i] + b_ * t_ * gradient_widths_[i]));
  }
  return gradients;
}

OutputGradients ModelCpu::of_sequence(const OutputGradients& all, std::int64_t sequence) const {
  OutputGradients gradients{};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradient_widths_[i] > 0) gradients[i] = all[i] + sequence * t_ * gradient_widths_[i];
  }
  return gradients;
}

std::uint64_t ModelCpu::buffer_bytes(SavedMask mask) const {
  std::uint64_t bytes = 0;
  for (std::size_t bit = 0; bit < tensor_bytes_.size(); ++bit) {
    const std::uint64_t all = static_cast<std::uint64_t>(b_) * tensor_bytes_[bit];
    if ((mask >> bit & 1) != 0) bytes += round_up(all, buffer_alignment);
  }
  return bytes;
}

AdapterSpace ModelCpu::carve_adapters(float*& scratch, bool backward,
                                      const DropoutPlace& dropout) const {
  AdapterSpace space;
  space.product = take(scratch, t_ * adapter_widths_.ranks);
  if (backward) space.gradient = take(scratch, t_ * adapter_widths_.ranks);
  if (problem_.model.lora_dropout > 0) space.input = take(scratch, t_ * adapter_widths_.input);
  space.place = dropout;
  return space;
}

void ModelCpu::layer_backward(const float* parameters, const float* input, const std::byte* saved,
                              SavedMask available, bool recomputes_output,
                              float* activation_gradient, float* gradient, bool first_micro_batch,
                              std::byte* scratch, const DropoutPlace& dropout,
                              const std::int32_t* starts) const {
  SPILLWAY_ASSERT(saved != nullptr || available == saved_none);
  if (first_micro_batch) std::fill_n(gradient, layer_elements_, 0.0f);
  LayerTensors tensors;
  const std::uint64_t recomputed = place(tensors.write, scratch, others(available), 1, 0);
  std::copy(tensors.write.begin(), tensors.write.end(), tensors.read.begin());
  float* left = reinterpret_cast<float*>(scratch + recomputed);
  const GradientScratch parts = carve_gradients(left);
  left = next_buffer(scratch, left);
  tensors.adapters = carve_adapters(left, true, dropout);
  SPILLWAY_ASSERT(reinterpret_cast<std::byte*>(left) <= scratch + scratch_bytes_[available]);
  for (std::int64_t sequence = 0; sequence < b_; ++sequence) {
    const float* x = input + sequence * t_ * c_;
    if (starts != nullptr) tensors.starts = starts + sequence * t_;
    place(tensors.read, saved, available, b_, sequence);
    // The gradients' scratch is still free: scores (R, T) fit into its first part, (T, F or more).
    compute_activations(parameters, x, available, tensors, parts.wide);
    if (recomputes_output) compute_output(parameters, tensors, parts.narrow);
    backward_sequence(parameters, x, tensors, activation_gradient + sequence * t_ * c_, gradient,
                      parts);
    ++tensors.adapters.place.sequence;
  }
}

void ModelCpu::layer_input_gradient(const float* parameters, const float* input,
                                    const std::byte* saved, SavedMask available,
                                    bool recomputes_output, float* activation_gradient,
                                    std::byte* kept, const OutputGradients& gradients,
                                    std::byte* scratch, const std::int32_t* starts) const {
  SPILLWAY_ASSERT(saved != nullptr || available == saved_none);
  SPILLWAY_ASSERT(!problem_.model.has_adapters());
  LayerTensors tensors;
  const auto keeps = static_cast<SavedMask>(weights_need_ & ~available);
  float* left =
      reinterpret_cast<float*>(scratch + place(tensors.write, scratch, others(available), 1, 0));
  GradientScratch parts = carve_gradients(left);
  SPILLWAY_ASSERT(reinterpret_cast<std::byte*>(left) <= scratch + scratch_bytes_[available]);
  for (std::int64_t sequence = 0; sequence < b_; ++sequence) {
    const float* x = input + sequence * t_ * c_;
    if (starts != nullptr) tensors.starts = starts + sequence * t_;
    place(tensors.write, kept, keeps, b_, sequence);
    std::copy(tensors.write.begin(), tensors.write.end(), tensors.read.begin());
    place(tensors.read, saved, available, b_, sequence);
    parts.of = of_sequence(gradients, sequence);
    compute_activations(parameters, x, available, tensors, parts.wide);
    if (recomputes_output) compute_output(parameters, tensors, parts.narrow);
    backward_sequence(parameters, x, tensors, activation_gradient + sequence * t_ * c_, nullptr,
                      parts);
  }
}

void ModelCpu::layer_weight_gradient(const float* input, const std::byte* saved,
                                     SavedMask available, const std::byte* kept,
                                     const OutputGradients& gradients, float* gradient,
                                     bool first_micro_batch) const {
  if (first_micro_batch) std::fill_n(gradient, layer_elements_, 0.0f);
  LayerTensors tensors;
  GradientScratch parts{};
  for (std::int64_t sequence = 0; sequence < b_; ++sequence) {
    place(tensors.read, kept, static_cast<SavedMask>(weights_need_ & ~available), b_, sequence);
    place(tensors.read, saved, available, b_, sequence);
    parts.of = of_sequence(gradients, sequence);
    weight_gradient_sequence(input + sequence * t_ * c_, tensors, parts, gradient);
  }
}

void ModelCpu::layer_input_gradient(const float* parameters, const float* input,
                                    const std::byte* saved, SavedMask available,
                                    bool recomputes_output, float* activation_gradient,
                                    std::byte* operands, std::byte* scratch,
                                    const std::int32_t* starts) const {
  const std::uint64_t kept = buffer_bytes(static_cast<SavedMask>(weights_need_ & ~available));
  layer_input_gradient(parameters, input, saved, available, recomputes_output, activation_gradient,
                       operands, output_gradients(operands + kept), scratch, starts);
}

void ModelCpu::layer_weight_gradient(const float* input, const std::byte* saved,
                                     SavedMask available, std::byte* operands, float* gradient,
                                     bool first_micro_batch, std::byte*) const {
  const std::uint64_t kept = buffer_bytes(static_cast<SavedMask>(weights_need_ & ~available));
  layer_weight_gradient(input, saved, available, operands, output_gradients(operands + kept),
                        gradient, first_micro_batch);
}

void ModelCpu::embed_backward(const std::int32_t* tokens, const float* activation_gradient,
                              float* gradient, bool first_micro_batch, std::byte*,
                              const std::int32_t* starts) const {
  if (first_micro_batch) std::fill_n(gradient, embedding_elements_, 0.0f);
  for (std::int64_t row = 0; row < b_ * t_; ++row) {
    const float* dx = activation_gradient + row * c_;
    float* token = gradient + tables_.tokens + checked(tokens[row]) * c_;
    kernels_.add(token, dx, token, c_);
    if (tables_.positions) {
      float* position = gradient + *tables_.positions + position_of(starts, row) * c_;
      kernels_.add(position, dx, position, c_);
    }
  }
}

std::unique_ptr<ModelCpu> make_model_cpu(const Problem& problem, CpuVariant variant, bool rounds) {
  check_supported(problem);
  if (problem.model.architecture == Architecture::gpt)
    return std::make_unique<GptCpu>(problem, variant, rounds);
  return std::make_unique<LlamaCpu>(problem, variant, rounds);
}

}  // namespace spillway
