#include "policies/cost/launch_times.hpp"

#include <algorithm>
#include <string_view>

#include "policies/cost/kernel_times.hpp"
#include "policies/cost/shape_times.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

constexpr double head_kernels = 7;  // norm, logits, cross entropy, two products, norm twice
constexpr double loss_kernels = 3;  // the first three

// Per operator of forward: of the gradient of its input, and of that of its weights.
double backward_operators(TaskKind kind) {
  return kind == TaskKind::backward ? 2 : is_backward(kind) ? 1 : 0;
}

// Operators of a layer's forward that the task runs, in forward or in recomputation, over all.
double share_run(const ModelSpec& model, const Task& task) {
  if (task.kind == TaskKind::forward) return 1;
  if (task.kind == TaskKind::weight_gradient) return 0;
  double run = 0, all = 0;
  for (const LayerOperator& one : layer_operators(model, 1, 1)) {
    ++all;
    const bool output = one.makes == saved_none;
    if (output ? task.recomputes_output : (one.makes & ~task.available) != 0) ++run;
  }
  return run / all;
}

double modules_of_layer(const ModelSpec& model) {
  constexpr std::string_view weight = ".weight";
  double modules = 0;
  for (const TensorLayout& tensor : unit_layout(model, 0)) {
    const std::string_view name = tensor.name;
    if (name.size() > weight.size() && name.substr(name.size() - weight.size()) == weight)
      ++modules;
  }
  return modules;
}

}  // namespace

LaunchTimes::LaunchTimes(const Problem& problem, const Framework& framework)
    : problem_(problem), framework_(framework), own_(framework.operator_ns == 0) {
  const Machine& machine = problem.machine;
  if (machine.gpu.is_cpu) return;
  hook_ns_ = static_cast<double>(framework.hook_ns);
  operator_ns_ = static_cast<double>(framework.operator_ns);
  if (!own_ || !machine.kernels.empty()) return;
  operator_ns_ = static_cast<double>(machine.gpu.launch_ns);
  kernels_ = problem.workload.micro_batch / sequences_of_kernel(problem);
}

double LaunchTimes::seconds(const Task& task) const {
  const auto [entry, is_new] = known_.try_emplace(compute_key(task));
  if (is_new) entry->second = look_up(task);
  return entry->second;
}

double LaunchTimes::look_up(const Task& task) const {
  constexpr double ns = 1e-9;
  return ns * (operator_ns_ * operators_of(task) + hook_ns_ * hooks_of(task));
}

double LaunchTimes::operators_of(const Task& task) const {
  if (task.kind == TaskKind::head)
    return static_cast<double>(kernels_) * (task.loss_only ? loss_kernels : head_kernels);
  if (!is_layer_pass(task.kind)) return 0;
  const double all = own_ ? static_cast<double>(layer_operators(problem_.model, 1, 1).size())
                          : static_cast<double>(framework_.host_operators);
  const double passes = share_run(problem_.model, task) + backward_operators(task.kind);
  return static_cast<double>(kernels_) * all * passes;
}

double LaunchTimes::hooks_of(const Task& task) const {
  if (!is_layer_pass(task.kind)) return 0;
  const bool runs_forward = share_run(problem_.model, task) > 0;
  return modules_of_layer(problem_.model) *
         ((is_backward(task.kind) ? 1 : 0) + (runs_forward ? 1 : 0));
}

}  // namespace spillway
