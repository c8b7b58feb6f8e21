#include "exec/cpu/cpu_device.hpp"

#include <cstring>

#include "base/errors.hpp"
#include "exec/cpu/blas_threads.hpp"

namespace spillway {

namespace {

float* floats(std::byte* bytes) { return reinterpret_cast<float*>(bytes); }

}  // namespace

CpuDevice::CpuDevice(const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes,
                     int threads)
    : model_(make_model_cpu(problem)),
      optimizer_(problem, threads),
      gpu_(gpu_bytes, "the arena that stands in for GPU memory"),
      host_(host_bytes, "host memory"),
      micro_batch_(problem.workload.micro_batch) {
  use_blas_threads(threads);
}

std::string CpuDevice::name() const { return std::string("cpu (") + model_->kernels().name + ")"; }

DropoutPlace CpuDevice::dropout_place(const Task& task, const Operands& o) const {
  DropoutPlace place{{}, task.layer, task.micro_batch * micro_batch_, o.step_noise != nullptr};
  if (place.drops) place.step = *o.step_noise;
  return place;
}

void CpuDevice::compute(const Task& task, const Operands& o) {
  switch (task.kind) {
    case TaskKind::embed_forward:
      model_->embed_forward(floats(o.parameters), o.tokens, floats(o.output), o.starts);
      return;
    case TaskKind::forward:
      model_->layer_forward(floats(o.parameters), floats(o.input), floats(o.output), o.saved,
                            task.saves, o.scratch, dropout_place(task, o), o.starts);
      return;
    case TaskKind::head:
      model_->head(floats(o.parameters), o.targets, floats(o.activation_gradient),
                   floats(o.head_gradient), task.first_micro_batch, o.losses, o.scratch, nullptr,
                   o.counted_tokens, task.loss_only);
      return;
    case TaskKind::backward:
      model_->layer_backward(floats(o.parameters), floats(o.input), o.saved, task.available,
                             task.recomputes_output, floats(o.activation_gradient),
                             floats(o.gradient), task.first_micro_batch, o.scratch,
                             dropout_place(task, o), o.starts);
      return;
    case TaskKind::embed_backward:
      model_->embed_backward(o.tokens, floats(o.activation_gradient), floats(o.gradient),
                             task.first_micro_batch, o.starts);
      return;
    case TaskKind::optimizer:
      optimizer_.update(task, o);
      return;
    case TaskKind::gradient_norm:
      optimizer_.gradient_norm(task, o);
      return;
    default:
      bug("a compute task", __FILE__, __LINE__, to_string(task.kind));
  }
}

void CpuDevice::copy(Lane, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace spillway
