#include "exec/cpu/gpt_cpu.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "base/errors.hpp"
#include "exec/cpu/blas_threads.hpp"
#include "exec/cpu/kernels_gemm.hpp"

namespace spillway {

namespace {

const Problem& supported(const Problem& problem) {
  if (problem.model.architecture != Architecture::gpt) {
    throw InputError(
        fmt::format("the CPU backend trains GPT models only, not '{}'", problem.model.name),
        "simulate this model, or train one of the GPT models");
  }
  if (!computes_in(Backend::cpu, problem.workload.precision))
    throw InputError("the CPU backend computes in fp32 only", "set the precision to fp32");
  problem.validate();
  SPILLWAY_ASSERT(problem.backend() == Backend::cpu, "planned for another backend");
  return problem;
}

}  // namespace

GptCpu::GptCpu(const Problem& problem, CpuVariant variant)
    : problem_(supported(problem)),
      kernels_(cpu_kernels(variant)),
      b_(problem.workload.micro_batch),
      t_(problem.workload.sequence),
      c_(problem.model.hidden),
      f_(problem.model.ffn),
      v_(problem.model.vocabulary),
      attention_{t_,
                 problem.model.heads,
                 problem.model.heads,
                 c_ / problem.model.heads,
                 0,
                 std::min({attention_chunk_rows, t_, f_})},
      layer_elements_(unit_elements(problem.model, 0)),
      embedding_elements_(unit_elements(problem.model, problem.model.layers)) {
  use_blas_threads(1);
  layer_ = layer_offsets(problem.model);
  embedding_ = embedding_offsets(problem.model);
  for (const SavedLayout& saved : saved_layout(problem, saved_all, 1))
    tensor_bytes_[bit_of(saved.tensor)] = saved.stride;
  for (std::size_t mask = 0; mask < scratch_bytes_.size(); ++mask)
    scratch_bytes_[mask] = backward_scratch_bytes(problem, static_cast<std::uint8_t>(mask));
}

template <class Byte>
std::uint64_t GptCpu::place(TensorAddresses<Byte>& at, Byte* buffer, std::uint8_t mask,
                            std::int64_t sequences, std::int64_t sequence) const {
  std::uint64_t offset = 0;
  for (std::size_t bit = 0; bit < tensor_bytes_.size(); ++bit) {
    if ((mask >> bit & 1) == 0) continue;
    at[bit] = buffer + offset + static_cast<std::uint64_t>(sequence) * tensor_bytes_[bit];
    const std::uint64_t bytes = static_cast<std::uint64_t>(sequences) * tensor_bytes_[bit];
    offset += (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
  }
  return offset;
}

template <class Element, class Byte>
GptCpu::Activations<Element> GptCpu::activations(const TensorAddresses<Byte>& at) const {
  const auto tensor = [&](SavedTensor which) {
    return reinterpret_cast<Element*>(at[bit_of(which)]);
  };
  Activations<Element> a{};
  a.ln1 = tensor(saved_ln1);
  a.qkv = tensor(saved_qkv);
  a.attention = tensor(saved_attention);
  a.residual = tensor(saved_residual);
  a.ln2 = tensor(saved_ln2);
  a.fc = tensor(saved_fc);
  a.gelu = tensor(saved_gelu);
  Element* const statistics = tensor(saved_statistics);
  if (statistics == nullptr) return a;
  a.mean1 = statistics;
  a.rstd1 = statistics + t_;
  a.mean2 = statistics + 2 * t_;
  a.rstd2 = statistics + 3 * t_;
  a.log_sum_exp = statistics + 4 * t_;
  return a;
}

std::int32_t GptCpu::checked(std::int32_t token) const {
  SPILLWAY_ASSERT(token >= 0 && token < v_,
                  fmt::format("token {} of a vocabulary of {}", token, v_));
  return token;
}

void GptCpu::embed_forward(const float* parameters, const std::int32_t* tokens,
                           float* output) const {
  for (std::int64_t row = 0; row < b_ * t_; ++row) {
    const float* token = parameters + embedding_.token_table + checked(tokens[row]) * c_;
    const float* position = parameters + embedding_.position_table + (row % t_) * c_;
    kernels_.add(token, position, output + row * c_, c_);
  }
}

void GptCpu::compute_activations(const float* parameters, const float* input,
                                 std::uint8_t available, const Activations<const float>& read,
                                 const Activations<float>& write, float* scores) const {
  const float* p = parameters;
  const CpuKernels& k = kernels_;
  const auto missing = [&](SavedTensor tensor) { return (available & tensor) == 0; };
  if (missing(saved_statistics)) k.norm_statistics(input, write.mean1, write.rstd1, t_, c_);
  if (missing(saved_ln1)) {
    k.norm_apply(input, read.mean1, read.rstd1, p + layer_.norm1_weight, p + layer_.norm1_bias,
                 write.ln1, t_, c_);
  }
  if (missing(saved_qkv)) {
    k.fill_rows(p + layer_.qkv_bias, write.qkv, t_, 3 * c_);
    linear_add(read.ln1, p + layer_.qkv_weight, write.qkv, t_, c_, 3 * c_);
  }
  if (missing(saved_attention) || missing(saved_statistics)) {
    attention_forward(k, attention_, side_by_side(attention_, read.qkv),
                      missing(saved_attention) ? write.attention : nullptr, write.log_sum_exp,
                      scores);
  }
  if (missing(saved_residual)) {
    k.add_to_rows(input, p + layer_.projection_bias, write.residual, t_, c_);
    linear_add(read.attention, p + layer_.projection_weight, write.residual, t_, c_, c_);
  }
  if (missing(saved_statistics)) k.norm_statistics(read.residual, write.mean2, write.rstd2, t_, c_);
  if (missing(saved_ln2)) {
    k.norm_apply(read.residual, read.mean2, read.rstd2, p + layer_.norm2_weight,
                 p + layer_.norm2_bias, write.ln2, t_, c_);
  }
  if (missing(saved_fc)) {
    k.fill_rows(p + layer_.fc_bias, write.fc, t_, f_);
    linear_add(read.ln2, p + layer_.fc_weight, write.fc, t_, c_, f_);
  }
  if (missing(saved_gelu)) k.gelu_forward(read.fc, write.gelu, t_ * f_);
}

void GptCpu::compute_output(const float* parameters, const Activations<const float>& read,
                            float* output) const {
  kernels_.add_to_rows(read.residual, parameters + layer_.fc_projection_bias, output, t_, c_);
  linear_add(read.gelu, parameters + layer_.fc_projection_weight, output, t_, f_, c_);
}

void GptCpu::layer_forward(const float* parameters, const float* input, float* output,
                           std::byte* saved, std::uint8_t saves, std::byte* scratch) const {
  SPILLWAY_ASSERT(saved != nullptr || saves == saved_none);
  for (std::int64_t sequence = 0; sequence < b_; ++sequence) {
    const float* x = input + sequence * t_ * c_;
    float* y = output + sequence * t_ * c_;
    TensorAddresses<std::byte> at{};
    place(at, saved, saves, b_, sequence);
    place(at, scratch, static_cast<std::uint8_t>(~saves), 1, 0);
    const auto write = activations<float>(at);
    const auto read = activations<const float>(at);
    // The scores (R, T) lie where GELU's output (T, F) will: R <= F, and attention is over by then.
    compute_activations(parameters, x, saved_none, read, write, write.gelu);
    compute_output(parameters, read, y);
  }
}

GptCpu::BackwardScratch GptCpu::carve_backward(std::byte* scratch, std::uint8_t available) const {
  std::uint64_t used = 0;
  const auto take = [&](std::int64_t elements) {
    std::byte* part = scratch + used;
    used += static_cast<std::uint64_t>(elements) * sizeof(float);
    return reinterpret_cast<float*>(part);
  };
  BackwardScratch parts{};
  used = place(parts.recomputed, scratch, static_cast<std::uint8_t>(~available), 1, 0);
  parts.wide = take(t_ * std::max(f_, 3 * c_));
  parts.narrow = take(t_ * c_);
  parts.attention = take(2 * attention_.chunk_rows * t_);
  SPILLWAY_ASSERT(used <= scratch_bytes_[available]);
  return parts;
}

void GptCpu::layer_backward(const float* parameters, const float* input, const std::byte* saved,
                            std::uint8_t available, bool recomputes_output,
                            float* activation_gradient, float* gradient, bool first_micro_batch,
                            std::byte* scratch) const {
  SPILLWAY_ASSERT(saved != nullptr || available == saved_none);
  if (first_micro_batch) std::fill_n(gradient, layer_elements_, 0.0f);
  const BackwardScratch parts = carve_backward(scratch, available);
  for (std::int64_t sequence = 0; sequence < b_; ++sequence) {
    const float* x = input + sequence * t_ * c_;
    TensorAddresses<const std::byte> readable{};
    std::copy(parts.recomputed.begin(), parts.recomputed.end(), readable.begin());
    place(readable, saved, available, b_, sequence);
    const auto a = activations<const float>(readable);
    // The gradients' scratch is still free: scores (R, T) fit into its first part, (T, F or more).
    compute_activations(parameters, x, available, a, activations<float>(parts.recomputed),
                        parts.wide);
    if (recomputes_output) compute_output(parameters, a, parts.narrow);
    float* dx = activation_gradient + sequence * t_ * c_;
    backward_feed_forward(parameters, a, dx, gradient, parts);
    backward_attention(parameters, x, a, dx, gradient, parts);
  }
}

// y = r + fcproj(gelu(fc(ln2(r)))): activation_gradient dL/dy becomes dL/dr.
void GptCpu::backward_feed_forward(const float* parameters, const Activations<const float>& a,
                                   float* activation_gradient, float* gradient,
                                   const BackwardScratch& scratch) const {
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
                                float* gradient, const BackwardScratch& scratch) const {
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

void GptCpu::embed_backward(const std::int32_t* tokens, const float* activation_gradient,
                            float* gradient, bool first_micro_batch) const {
  if (first_micro_batch) std::fill_n(gradient, embedding_elements_, 0.0f);
  for (std::int64_t row = 0; row < b_ * t_; ++row) {
    const float* dx = activation_gradient + row * c_;
    float* token = gradient + embedding_.token_table + checked(tokens[row]) * c_;
    float* position = gradient + embedding_.position_table + (row % t_) * c_;
    kernels_.add(token, dx, token, c_);
    kernels_.add(position, dx, position, c_);
  }
}

}  // namespace spillway
