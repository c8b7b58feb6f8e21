#include "exec/cpu/model_cpu_bf16.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "policies/model/scratch.hpp"

namespace spillway {

namespace {

std::uint64_t page_up(std::uint64_t bytes) { return round_up(bytes, buffer_alignment); }

std::uint64_t bytes_of(std::int64_t elements, std::uint64_t each) {
  return static_cast<std::uint64_t>(elements) * each;
}

}  // namespace

// Of a task's scratch, in order.
class ModelCpuBf16::Parts {
 public:
  explicit Parts(std::byte* scratch) : at_(scratch) {}
  float* floats(std::int64_t elements) {
    return reinterpret_cast<float*>(bytes(bytes_of(elements, sizeof(float))));
  }
  std::byte* bytes(std::uint64_t count) {
    std::byte* const part = at_;
    at_ += page_up(count);
    return part;
  }
  std::byte* rest() const { return at_; }

 private:
  std::byte* at_;
};

ModelCpuBf16::ModelCpuBf16(const Problem& problem, CpuVariant variant)
    : problem_(problem),
      model_(make_model_cpu(one_sequence_in_fp32(problem), variant, true)),
      b_(problem.workload.micro_batch),
      t_(problem.workload.sequence),
      c_(problem.model.hidden),
      layer_elements_(unit_elements(problem.model, 0)),
      head_elements_(unit_elements(problem.model, head_unit(problem.model))),
      layer_trained_(trained_elements(problem.model, problem.model.layers - 1)),
      embedding_trained_(trained_elements(problem.model, embedding_unit(problem.model))),
      head_trained_(trained_elements(problem.model, head_unit(problem.model))),
      wide_gradient_(problem.gradient_bytes() == sizeof(float)),
      saved_all_(saved_all(problem.model)),
      weights_need_(activations_of_weights(problem)),
      gradient_widths_(output_gradient_widths(problem)) {
  problem.validate();
  SPILLWAY_ASSERT(works_on_copies(problem), "planned for the CPU backend in bf16");
  for (const SavedTensor& tensor : saved_tensors(problem.model))
    tensors_.push_back({t_ * tensor.width, tensor.fp32});
}

const float* ModelCpuBf16::widened(const bf16* parameters, std::int64_t elements,
                                   Parts& parts) const {
  float* const copy = parts.floats(elements);
  kernels().widen(parameters, copy, elements);
  return copy;
}

float* ModelCpuBf16::begin_sum(std::byte* gradient, bool first_micro_batch, std::int64_t elements,
                               Parts& parts) const {
  if (wide_gradient_ || gradient == nullptr) return reinterpret_cast<float*>(gradient);
  SPILLWAY_ASSERT(first_micro_batch, "nothing is added to a gradient in bf16");
  return parts.floats(elements);
}

void ModelCpuBf16::finish_sum(const float* sum, std::byte* gradient, std::int64_t elements) const {
  if (wide_gradient_ || gradient == nullptr) return;
  kernels().round_to_bf16(sum, reinterpret_cast<bf16*>(gradient), elements);
}

template <class Move>
void ModelCpuBf16::for_each_kept(SavedMask kept, SavedMask copies, std::int64_t sequence,
                                 Move move) const {
  std::uint64_t kept_at = 0, copy_at = 0;
  for (std::size_t bit = 0; bit < tensors_.size(); ++bit) {
    const Tensor& tensor = tensors_[bit];
    const std::uint64_t stride =
        bytes_of(tensor.elements, tensor.fp32 ? sizeof(float) : sizeof(bf16));
    if ((kept >> bit & 1) != 0) {
      if ((copies >> bit & 1) != 0)
        move(tensor, kept_at + static_cast<std::uint64_t>(sequence) * stride, copy_at);
      kept_at += page_up(static_cast<std::uint64_t>(b_) * stride);
    }
    if ((copies >> bit & 1) != 0) copy_at += page_up(bytes_of(tensor.elements, sizeof(float)));
  }
}

void ModelCpuBf16::widen_kept(const std::byte* buffer, SavedMask kept, SavedMask copies,
                              std::int64_t sequence, std::byte* tensors) const {
  for_each_kept(kept, copies, sequence, [&](const Tensor& tensor, auto kept_at, auto copy_at) {
    const std::byte* const from = buffer + kept_at;
    float* const values = reinterpret_cast<float*>(tensors + copy_at);
    if (tensor.fp32) {
      std::memcpy(values, from, bytes_of(tensor.elements, sizeof(float)));
    } else {
      kernels().widen(reinterpret_cast<const bf16*>(from), values, tensor.elements);
    }
  });
}

void ModelCpuBf16::round_kept(const std::byte* tensors, SavedMask kept, SavedMask copies,
                              std::int64_t sequence, std::byte* buffer) const {
  for_each_kept(kept, copies, sequence, [&](const Tensor& tensor, auto kept_at, auto copy_at) {
    const float* const values = reinterpret_cast<const float*>(tensors + copy_at);
    std::byte* const to = buffer + kept_at;
    if (tensor.fp32) {
      std::memcpy(to, values, bytes_of(tensor.elements, sizeof(float)));
    } else {
      kernels().round_to_bf16(values, reinterpret_cast<bf16*>(to), tensor.elements);
    }
  });
}

std::uint64_t ModelCpuBf16::copies_bytes(SavedMask copies) const {
  std::uint64_t bytes = 0;
  for (std::size_t bit = 0; bit < tensors_.size(); ++bit) {
    if ((copies >> bit & 1) != 0) bytes += page_up(bytes_of(tensors_[bit].elements, sizeof(float)));
  }
  return bytes;
}

OutputGradients ModelCpuBf16::output_gradients(std::byte* operands, SavedMask available,
                                               std::int64_t sequence) const {
  std::byte* at = operands;
  for (std::size_t bit = 0; bit < tensors_.size(); ++bit) {
    if ((weights_need_ & ~available) >> bit & 1)
      at += page_up(
          bytes_of(b_ * tensors_[bit].elements, tensors_[bit].fp32 ? sizeof(float) : sizeof(bf16)));
  }
  OutputGradients gradients{};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradient_widths_[i] == 0) continue;
    gradients[i] = reinterpret_cast<float*>(at) + sequence * t_ * gradient_widths_[i];
    at += page_up(bytes_of(b_ * t_ * gradient_widths_[i], sizeof(float)));
  }
  return gradients;
}

void ModelCpuBf16::embed_forward(const bf16* parameters, const std::int32_t* tokens, bf16* output,
                                 const std::int32_t* starts) const {
  const ModelCpu::Tables& tables = model_->tables();
  for (std::int64_t row = 0; row < b_ * t_; ++row) {
    const bf16* const token = parameters + tables.tokens + model_->checked(tokens[row]) * c_;
    if (tables.positions) {
      const bf16* const position =
          parameters + *tables.positions + model_->position_of(starts, row) * c_;
      kernels().add_bf16(token, position, output + row * c_, c_);
    } else {
      std::copy_n(token, c_, output + row * c_);
    }
  }
}

void ModelCpuBf16::layer_forward(const bf16* parameters, const bf16* input, bf16* output,
                                 std::byte* saved, SavedMask saves, std::byte* scratch,
                                 const DropoutPlace& dropout, const std::int32_t* starts) const {
  SPILLWAY_ASSERT(saved != nullptr || saves == saved_none);
  Parts parts(scratch);
  const float* const p = widened(parameters, layer_elements_, parts);
  float* const x = parts.floats(t_ * c_);
  float* const y = parts.floats(t_ * c_);
  std::byte* const tensors = parts.rest();
  std::byte* const adapters = tensors + copies_bytes(saved_all_);
  DropoutPlace place = dropout;
  for (std::int64_t s = 0; s < b_; ++s, ++place.sequence) {
    kernels().widen(sequence_of(input, s), x, t_ * c_);
    model_->layer_forward(p, x, y, tensors, saved_all_, adapters, place, starts_of(starts, s));
    kernels().round_to_bf16(y, sequence_of(output, s), t_ * c_);
    round_kept(tensors, saves, saved_all_, s, saved);
  }
}

void ModelCpuBf16::head(const bf16* parameters, const std::int32_t* targets, bf16* hidden,
                        std::byte* head_gradient, bool first_micro_batch, double* losses,
                        std::byte* scratch, double* token_losses, std::int64_t counted_tokens,
                        bool loss_only) const {
  Parts parts(scratch);
  const float* const p = widened(parameters, head_elements_, parts);
  const std::int64_t counted =
      counted_tokens > 0 ? counted_tokens : problem_.workload.tokens_per_step();
  float* const sum =
      loss_only ? nullptr : begin_sum(head_gradient, first_micro_batch, head_trained_, parts);
  float* const x = parts.floats(t_ * c_);
  for (std::int64_t s = 0; s < b_; ++s) {
    kernels().widen(sequence_of(hidden, s), x, t_ * c_);
    model_->head(p, targets + s * t_, x, sum, first_micro_batch && s == 0, losses + s, parts.rest(),
                 token_losses != nullptr ? token_losses + s * t_ : nullptr, counted, loss_only);
    if (!loss_only) kernels().round_to_bf16(x, sequence_of(hidden, s), t_ * c_);
  }
  if (!loss_only) finish_sum(sum, head_gradient, head_trained_);
}

void ModelCpuBf16::layer_backward(const bf16* parameters, const bf16* input, const std::byte* saved,
                                  SavedMask available, bool recomputes_output,
                                  bf16* activation_gradient, std::byte* gradient,
                                  bool first_micro_batch, std::byte* scratch,
                                  const DropoutPlace& dropout, const std::int32_t* starts) const {
  SPILLWAY_ASSERT(saved != nullptr || available == saved_none);
  Parts parts(scratch);
  const float* const p = widened(parameters, layer_elements_, parts);
  float* const sum = begin_sum(gradient, first_micro_batch, layer_trained_, parts);
  float* const x = parts.floats(t_ * c_);
  float* const dx = parts.floats(t_ * c_);
  std::byte* const tensors = parts.rest();
  std::byte* const left = tensors + copies_bytes(available);
  DropoutPlace place = dropout;
  for (std::int64_t s = 0; s < b_; ++s, ++place.sequence) {
    kernels().widen(sequence_of(input, s), x, t_ * c_);
    kernels().widen(sequence_of(activation_gradient, s), dx, t_ * c_);
    widen_kept(saved, available, available, s, tensors);
    model_->layer_backward(p, x, tensors, available, recomputes_output, dx, sum,
                           first_micro_batch && s == 0, left, place, starts_of(starts, s));
    kernels().round_to_bf16(dx, sequence_of(activation_gradient, s), t_ * c_);
  }
  finish_sum(sum, gradient, layer_trained_);
}

void ModelCpuBf16::layer_input_gradient(const bf16* parameters, const bf16* input,
                                        const std::byte* saved, SavedMask available,
                                        bool recomputes_output, bf16* activation_gradient,
                                        std::byte* operands, std::byte* scratch,
                                        const std::int32_t* starts) const {
  SPILLWAY_ASSERT(saved != nullptr || available == saved_none);
  const auto keeps = static_cast<SavedMask>(weights_need_ & ~available);
  Parts parts(scratch);
  const float* const p = widened(parameters, layer_elements_, parts);
  float* const x = parts.floats(t_ * c_);
  float* const dx = parts.floats(t_ * c_);
  std::byte* const tensors = parts.rest();
  std::byte* const kept = tensors + copies_bytes(available);
  std::byte* const left = kept + copies_bytes(keeps);
  for (std::int64_t s = 0; s < b_; ++s) {
    kernels().widen(sequence_of(input, s), x, t_ * c_);
    kernels().widen(sequence_of(activation_gradient, s), dx, t_ * c_);
    widen_kept(saved, available, available, s, tensors);
    model_->layer_input_gradient(p, x, tensors, available, recomputes_output, dx, kept,
                                 output_gradients(operands, available, s), left,
                                 starts_of(starts, s));
    round_kept(kept, keeps, keeps, s, operands);
    kernels().round_to_bf16(dx, sequence_of(activation_gradient, s), t_ * c_);
  }
}

void ModelCpuBf16::layer_weight_gradient(const bf16* input, const std::byte* saved,
                                         SavedMask available, std::byte* operands,
                                         std::byte* gradient, bool first_micro_batch,
                                         std::byte* scratch) const {
  Parts parts(scratch);
  float* const sum = begin_sum(gradient, first_micro_batch, layer_trained_, parts);
  float* const x = parts.floats(t_ * c_);
  std::byte* const tensors = parts.rest();
  for (std::int64_t s = 0; s < b_; ++s) {
    kernels().widen(sequence_of(input, s), x, t_ * c_);
    widen_kept(saved, available, weights_need_, s, tensors);
    widen_kept(operands, static_cast<SavedMask>(weights_need_ & ~available), weights_need_, s,
               tensors);
    model_->layer_weight_gradient(x, tensors, weights_need_, nullptr,
                                  output_gradients(operands, available, s), sum,
                                  first_micro_batch && s == 0);
  }
  finish_sum(sum, gradient, layer_trained_);
}

void ModelCpuBf16::embed_backward(const std::int32_t* tokens, const bf16* activation_gradient,
                                  std::byte* gradient, bool first_micro_batch, std::byte* scratch,
                                  const std::int32_t* starts) const {
  const std::uint64_t element = wide_gradient_ ? sizeof(float) : sizeof(bf16);
  if (first_micro_batch) std::memset(gradient, 0, bytes_of(embedding_trained_, element));
  if (wide_gradient_)
    return add_embedding_gradients(tokens, activation_gradient, reinterpret_cast<float*>(gradient),
                                   starts);
  SPILLWAY_ASSERT(first_micro_batch, "nothing is added to a gradient in bf16");
  write_embedding_gradients(tokens, activation_gradient, reinterpret_cast<bf16*>(gradient), scratch,
                            starts);
}

void ModelCpuBf16::add_embedding_gradients(const std::int32_t* tokens,
                                           const bf16* activation_gradient, float* gradient,
                                           const std::int32_t* starts) const {
  const ModelCpu::Tables& tables = model_->tables();
  for (std::int64_t row = 0; row < b_ * t_; ++row) {
    const bf16* const dx = activation_gradient + row * c_;
    float* const token = gradient + tables.tokens + model_->checked(tokens[row]) * c_;
    kernels().add_from_bf16(token, dx, token, c_);
    if (tables.positions) {
      float* const position = gradient + *tables.positions + model_->position_of(starts, row) * c_;
      kernels().add_from_bf16(position, dx, position, c_);
    }
  }
}

// Row by row of the tables, each of which is added up in fp32.
void ModelCpuBf16::write_embedding_gradients(const std::int32_t* tokens,
                                             const bf16* activation_gradient, bf16* gradient,
                                             std::byte* scratch, const std::int32_t* starts) const {
  const ModelCpu::Tables& tables = model_->tables();
  const std::int64_t rows = b_ * t_;
  Parts parts(scratch);
  const std::span<std::int32_t> order(
      reinterpret_cast<std::int32_t*>(parts.bytes(bytes_of(rows, sizeof(std::int32_t)))),
      static_cast<std::size_t>(rows));
  float* const sum = parts.floats(c_);
  // By row of the table, and what is added to one in the order of the tokens.
  const auto write = [&](std::int64_t table, const auto& row_of) {
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return std::pair(row_of(a), a) < std::pair(row_of(b), b);
    });
    for (std::size_t first = 0; first < order.size();) {
      const std::int64_t row = row_of(order[first]);
      std::fill_n(sum, c_, 0.0f);
      for (; first < order.size() && row_of(order[first]) == row; ++first)
        kernels().add_from_bf16(sum, activation_gradient + order[first] * c_, sum, c_);
      kernels().round_to_bf16(sum, gradient + table + row * c_, c_);
    }
  };
  write(tables.tokens, [&](std::int64_t i) -> std::int64_t { return model_->checked(tokens[i]); });
  if (tables.positions)
    write(*tables.positions, [&](std::int64_t i) { return model_->position_of(starts, i); });
}

}  // namespace spillway
