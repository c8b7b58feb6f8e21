#include "tests/exec/cpu/bf16_device.hpp"

#include <algorithm>
#include <cstring>

#include "base/errors.hpp"
#include "policies/model/scratch.hpp"

namespace spillway::test {

namespace {

Problem one_sequence(Problem problem) {
  problem.workload.precision = Precision::fp32;
  problem.workload.gradient = GradientWidth::automatic;
  problem.workload.micro_batch = 1;
  return problem;
}

std::size_t count(std::int64_t value) { return static_cast<std::size_t>(value); }

void widen(const std::byte* from, float* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    bf16 value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    to[i] = to_float(value);
  }
}

void narrow(const float* from, std::byte* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const bf16 value = to_bf16(from[i]);
    std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
}

}  // namespace

Bf16Device::Bf16Device(const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes,
                       int threads)
    : problem_(problem),
      sequence_(one_sequence(problem)),
      model_(make_model_cpu(sequence_)),
      optimizer_(problem, threads),
      gpu_(gpu_bytes),
      host_(host_bytes, "host memory"),
      b_(problem.workload.micro_batch),
      t_(problem.workload.sequence),
      c_(problem.model.hidden),
      of_sequence_(saved_layout(sequence_, saved_all(sequence_.model), 1)) {
  SPILLWAY_ASSERT(problem.workload.precision == Precision::bf16);
  std::int64_t most = 0;
  for (std::int64_t unit = 0; unit < unit_count(problem.model); ++unit)
    most = std::max(most, unit_elements(problem.model, unit));
  parameters_.resize(count(most));
  gradient_.resize(count(most));
  saved_.resize(saved_bytes(sequence_, saved_all(sequence_.model), 1));
  scratch_.resize(std::max({forward_scratch_bytes(sequence_, saved_all(sequence_.model)),
                            backward_scratch_bytes(sequence_, saved_all(sequence_.model)),
                            head_scratch_bytes(sequence_)}));
}

void Bf16Device::upload(std::uint64_t offset, std::span<const std::byte> from) {
  std::memcpy(gpu_.reach(gpu_.span().subspan(offset, from.size()).data()), from.data(),
              from.size());
}

void Bf16Device::download(std::uint64_t offset, std::span<std::byte> to) {
  std::memcpy(to.data(), gpu_.reach(gpu_.span().subspan(offset, to.size()).data()), to.size());
}

void Bf16Device::copy(Lane, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  std::memcpy(gpu_.reach(to), gpu_.reach(from), bytes);
}

bool Bf16Device::is_fp32(SavedMask tensor) const {
  return saved_tensors(problem_.model)[bit_of(tensor)].fp32;
}

Operands Bf16Device::reachable(const Operands& operands) const {
  Operands o = operands;
  for (std::byte** address : {&o.parameters, &o.gradient, &o.head_gradient, &o.optimizer_state,
                              &o.input, &o.output, &o.saved, &o.activation_gradient, &o.scratch})
    *address = gpu_.reach(*address);
  return o;
}

const float* Bf16Device::parameters(const std::byte* from, std::int64_t unit) {
  widen(from, parameters_.data(), count(unit_elements(problem_.model, unit)));
  return parameters_.data();
}

Bf16Device::Floats Bf16Device::activation(const std::byte* from, std::int64_t s) const {
  Floats values(count(t_ * c_));
  widen(from + count(s) * values.size() * sizeof(bf16), values.data(), values.size());
  return values;
}

void Bf16Device::write_activation(const Floats& from, std::byte* to, std::int64_t s) const {
  narrow(from.data(), to + count(s) * from.size() * sizeof(bf16), from.size());
}

template <class Add>
void Bf16Device::accumulate(std::byte* gradient, std::int64_t unit, bool first_micro_batch,
                            const Add& add) {
  const bool wide = problem_.gradient_bytes() == sizeof(float);
  SPILLWAY_ASSERT(wide || first_micro_batch, "nothing is added up in bf16");
  float* const sum =
      wide || gradient == nullptr ? reinterpret_cast<float*>(gradient) : gradient_.data();
  for (std::int64_t s = 0; s < b_; ++s) add(s, sum, first_micro_batch && s == 0);
  if (!wide) narrow(sum, gradient, count(trained_elements(problem_.model, unit)));
}

DropoutPlace Bf16Device::dropout_place(const Task& task, const Operands& o, std::int64_t s) const {
  if (o.step_noise == nullptr) return {};
  return {*o.step_noise, task.layer, task.micro_batch * b_ + s};
}

void Bf16Device::compute(const Task& task, const Operands& operands) {
  const Operands o = reachable(operands);
  const std::int64_t embedding = embedding_unit(problem_.model);
  switch (task.kind) {
    case TaskKind::embed_forward: {
      const float* const p = parameters(o.parameters, embedding);
      for (std::int64_t s = 0; s < b_; ++s) {
        Floats output(count(t_ * c_));
        model_->embed_forward(p, o.tokens + s * t_, output.data());
        write_activation(output, o.output, s);
      }
      return;
    }
    case TaskKind::forward:
      return forward(task, o);
    case TaskKind::head:
      return head(task, o);
    case TaskKind::backward:
      return backward(task, o);
    case TaskKind::embed_backward:
      return accumulate(o.gradient, embedding, task.first_micro_batch,
                        [&](std::int64_t s, float* gradient, bool first) {
                          const Floats of_output = activation(o.activation_gradient, s);
                          model_->embed_backward(o.tokens + s * t_, of_output.data(), gradient,
                                                 first);
                        });
    case TaskKind::optimizer:
      return optimizer_.update(task, o);
    case TaskKind::gradient_norm:
      return optimizer_.gradient_norm(task, o);
    default:
      bug("a compute task", __FILE__, __LINE__, to_string(task.kind));
  }
}

void Bf16Device::forward(const Task& task, const Operands& o) {
  const float* const p = parameters(o.parameters, task.layer);
  for (std::int64_t s = 0; s < b_; ++s) {
    const Floats input = activation(o.input, s);
    Floats output(input.size());
    model_->layer_forward(p, input.data(), output.data(), saved_.data(), saved_all(sequence_.model),
                          scratch_.data(), dropout_place(task, o, s));
    write_activation(output, o.output, s);
    for (const SavedLayout& to : saved_layout(problem_, task.saves, b_)) {
      const auto from = std::find_if(of_sequence_.begin(), of_sequence_.end(),
                                     [&](const auto& one) { return one.tensor == to.tensor; });
      const std::byte* const values = saved_.data() + from->offset;
      std::byte* const place = o.saved + to.offset + count(s) * to.stride;
      if (is_fp32(to.tensor)) {
        std::memcpy(place, values, to.stride);
      } else {
        narrow(reinterpret_cast<const float*>(values), place, to.stride / sizeof(bf16));
      }
    }
  }
}

void Bf16Device::backward(const Task& task, const Operands& o) {
  const float* const p = parameters(o.parameters, task.layer);
  const auto kept = saved_layout(problem_, task.available, b_);
  accumulate(
      o.gradient, task.layer, task.first_micro_batch,
      [&](std::int64_t s, float* gradient, bool first) {
        const Floats input = activation(o.input, s);
        Floats output(input.size()), change = activation(o.activation_gradient, s);
        model_->layer_forward(p, input.data(), output.data(), saved_.data(),
                              saved_all(sequence_.model), scratch_.data(),
                              dropout_place(task, o, s));
        for (const SavedLayout& tensor : of_sequence_) {
          float* const values = reinterpret_cast<float*>(saved_.data() + tensor.offset);
          const std::size_t n = tensor.stride / sizeof(float);
          const auto from = std::find_if(kept.begin(), kept.end(), [&](const SavedLayout& one) {
            return one.tensor == tensor.tensor;
          });
          if (is_fp32(tensor.tensor)) {
            if (from != kept.end())
              std::memcpy(values, o.saved + from->offset + count(s) * from->stride, from->stride);
          } else if (from != kept.end()) {
            widen(o.saved + from->offset + count(s) * from->stride, values, n);
          } else {
            for (std::size_t i = 0; i < n; ++i) values[i] = to_float(to_bf16(values[i]));
          }
        }
        model_->layer_backward(p, input.data(), saved_.data(), saved_all(sequence_.model), false,
                               change.data(), gradient, first, scratch_.data(),
                               dropout_place(task, o, s));
        write_activation(change, o.activation_gradient, s);
      });
}

void Bf16Device::head(const Task& task, const Operands& o) {
  const std::int64_t unit = head_unit(problem_.model);
  const float* const p = parameters(o.parameters, unit);
  accumulate(o.head_gradient, unit, task.first_micro_batch,
             [&](std::int64_t s, float* gradient, bool first) {
               Floats hidden = activation(o.activation_gradient, s);
               model_->head(p, o.targets + s * t_, hidden.data(), gradient, first, o.losses + s,
                            scratch_.data());
               write_activation(hidden, o.activation_gradient, s);
             });
}

}  // namespace spillway::test
