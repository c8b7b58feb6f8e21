#include "exec/cpu_device.hpp"

#include <cstring>

#include "base/errors.hpp"
#include "exec/blas_threads.hpp"
#include "exec/clipping.hpp"

namespace spillway {

namespace {

float* floats(std::byte* bytes) { return reinterpret_cast<float*>(bytes); }

}  // namespace

CpuDevice::CpuDevice(const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes,
                     int threads)
    : layers_(problem.model.layers),
      workload_(problem.workload),
      block_elements_(unit_elements(problem.model, 0)),
      embedding_elements_(unit_elements(problem.model, problem.model.layers)),
      gpt_(problem),
      block_layout_(block_layout(problem.model)),
      embedding_layout_(embedding_layout(problem.model)),
      gpu_(gpu_bytes, "the arena that stands in for GPU memory"),
      host_(host_bytes, "host memory"),
      crew_(threads) {
  use_blas_threads(threads);
}

std::string CpuDevice::name() const { return std::string("cpu (") + gpt_.kernels().name + ")"; }

void CpuDevice::compute(const Task& task, const Operands& o) {
  switch (task.kind) {
    case TaskKind::embed_forward:
      gpt_.embed_forward(floats(o.parameters), o.tokens, floats(o.output));
      return;
    case TaskKind::forward:
      gpt_.block_forward(floats(o.parameters), floats(o.input), floats(o.output), o.saved,
                         task.saves, o.scratch);
      return;
    case TaskKind::head:
      gpt_.head(floats(o.parameters), o.targets, floats(o.activation_gradient),
                floats(o.head_gradient), task.first_micro_batch, o.losses, o.scratch);
      return;
    case TaskKind::backward:
      gpt_.block_backward(floats(o.parameters), floats(o.input), o.saved, task.available,
                          task.recomputes_output, floats(o.activation_gradient), floats(o.gradient),
                          task.first_micro_batch, o.scratch);
      return;
    case TaskKind::embed_backward:
      gpt_.embed_backward(o.tokens, floats(o.activation_gradient), floats(o.gradient),
                          task.first_micro_batch);
      return;
    case TaskKind::optimizer:
      optimizer(task, o);
      return;
    case TaskKind::gradient_norm:
      gradient_norm(task, o);
      return;
    default:
      bug("a compute task", __FILE__, __LINE__, to_string(task.kind));
  }
}

void CpuDevice::optimizer(const Task& task, const Operands& o) const {
  const auto elements = static_cast<std::int64_t>(task.params);
  float* master = floats(o.optimizer_state);
  const GradientUse use = gradient_use(workload_, o.norms, task.layer);
  if (use.skip) {
    std::memcpy(o.parameters, master, task.params * sizeof(float));
    *o.gradient_square_sum = 0;
    return;
  }
  AdamStep adam = o.adam;
  adam.gradient_factor = use.factor;
  *o.gradient_square_sum = adamw_update_unit(
      crew_, master, master + elements, master + 2 * elements, floats(o.gradient),
      floats(o.head_gradient), floats(o.parameters), static_cast<std::int64_t>(task.first_element),
      elements, task.layer == layers_ ? embedding_layout_ : block_layout_, adam);
}

void CpuDevice::gradient_norm(const Task& task, const Operands& o) const {
  const double squares =
      gpt_.kernels().sum_of_squares(floats(o.gradient), floats(o.head_gradient),
                                    task.layer == layers_ ? embedding_elements_ : block_elements_);
  o.norms.front() = squares;
  *o.gradient_square_sum = squares;
}

void CpuDevice::copy(Lane, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace spillway
