#include "exec/cpu/cpu_tasks.hpp"

#include "base/errors.hpp"
#include "exec/cpu/blas_threads.hpp"

namespace spillway {

std::variant<CpuTasks::Fp32, CpuTasks::Bf16> CpuTasks::model_of(const Problem& problem) {
  if (problem.parameter_bytes() == sizeof(float)) return make_model_cpu(problem);
  return std::make_unique<const ModelCpuBf16>(problem);
}

CpuTasks::CpuTasks(const Problem& problem, int threads)
    : model_(model_of(problem)),
      optimizer_(problem, threads),
      micro_batch_(problem.workload.micro_batch),
      first_sequence_(problem.first_sequence()) {
  use_blas_threads(threads);
}

const CpuKernels& CpuTasks::kernels() const {
  return std::visit([](const auto& model) -> const CpuKernels& { return model->kernels(); },
                    model_);
}

DropoutPlace CpuTasks::dropout_place(const Task& task, const Operands& o) const {
  DropoutPlace place{
      {}, task.layer, first_sequence_ + task.micro_batch * micro_batch_, o.step_noise != nullptr};
  if (place.drops) place.step = *o.step_noise;
  return place;
}

template <class Model>
void CpuTasks::compute_with(const Model& model, const Task& task, const Operands& o) const {
  const auto elements = [](std::byte* at) {
    return reinterpret_cast<typename Model::Element*>(at);
  };
  const auto gradients = [](std::byte* at) {
    return reinterpret_cast<typename Model::Gradient*>(at);
  };
  switch (task.kind) {
    case TaskKind::embed_forward:
      return model.embed_forward(elements(o.parameters), o.tokens, elements(o.output), o.starts);
    case TaskKind::forward:
      return model.layer_forward(elements(o.parameters), elements(o.input), elements(o.output),
                                 o.saved, task.saves, o.scratch, dropout_place(task, o), o.starts);
    case TaskKind::head:
      return model.head(elements(o.parameters), o.targets, elements(o.activation_gradient),
                        gradients(o.head_gradient), task.first_micro_batch, o.losses, o.scratch,
                        nullptr, o.counted_tokens, task.loss_only);
    case TaskKind::backward:
      return model.layer_backward(
          elements(o.parameters), elements(o.input), o.saved, task.available,
          task.recomputes_output, elements(o.activation_gradient), gradients(o.gradient),
          task.first_micro_batch, o.scratch, dropout_place(task, o), o.starts);
    case TaskKind::input_gradient:
      return model.layer_input_gradient(elements(o.parameters), elements(o.input), o.saved,
                                        task.available, task.recomputes_output,
                                        elements(o.activation_gradient), o.weight_operands,
                                        o.scratch, o.starts);
    case TaskKind::weight_gradient:
      return model.layer_weight_gradient(elements(o.input), o.saved, task.available,
                                         o.weight_operands, gradients(o.gradient),
                                         task.first_micro_batch, o.scratch);
    case TaskKind::embed_backward:
      return model.embed_backward(o.tokens, elements(o.activation_gradient), gradients(o.gradient),
                                  task.first_micro_batch, o.scratch, o.starts);
    default:
      bug("a compute task", __FILE__, __LINE__, to_string(task.kind));
  }
}

void CpuTasks::compute(const Task& task, const Operands& operands) const {
  if (task.kind == TaskKind::optimizer) return optimizer_.update(task, operands);
  if (task.kind == TaskKind::gradient_norm) return optimizer_.gradient_norm(task, operands);
  if (task.kind == TaskKind::gradient_add) return optimizer_.gradient_add(task, operands);
  std::visit([&](const auto& model) { compute_with(*model, task, operands); }, model_);
}

}  // namespace spillway
