// The inputs of GreedySnake's linear program, from a problem.
#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "policies/greedysnake/greedysnake_lp.hpp"
#include "policies/model/gpt_layout.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

namespace {

double needed(const Problem& problem, double rate, const char* key) {
  if (rate > 0) return rate;
  throw InputError(
      fmt::format("machine {}: placing by GreedySnake's model needs {}, which is not given",
                  problem.machine.name, key),
      "give it in the machine file, or as " + Setting{key, "..."} + ", or use placement=least");
}

// A task as the schedule has it: measured at this very shape where the machine was, else by FLOPs.
double seconds(const Problem& problem, const Task& task) {
  const std::string shape = kernel_shape(problem, task);
  for (const KernelTime& kernel : problem.machine.kernels) {
    if (kernel.kind == to_string(task.kind) && kernel.shape == shape && kernel.median_ns > 0)
      return static_cast<double>(kernel.median_ns) * 1e-9;
  }
  if (task.flops == 0) return 0;
  return task.flops / needed(problem, problem.machine.gpu.flops, "gpu.flops") +
         static_cast<double>(problem.machine.gpu.launch_ns) * 1e-9;
}

double sum(std::initializer_list<std::uint64_t> bytes) {
  double total = 0;
  for (const std::uint64_t one : bytes) total += static_cast<double>(one);
  return total;
}

}  // namespace

GreedySnakeInputs greedysnake_inputs(const Problem& problem) {
  const ModelSpec& model = problem.model;
  const Machine& machine = problem.machine;
  const Workload& workload = problem.workload;
  const std::int64_t b = workload.micro_batch, t = workload.sequence;
  const auto unit = static_cast<std::uint64_t>(unit_elements(model, 0));
  const auto embedding = static_cast<std::uint64_t>(unit_elements(model, model.layers));
  const std::uint64_t activation = checkpoint_bytes(problem);

  GreedySnakeInputs in;
  in.units = static_cast<double>(model.layers);
  in.unit_parameters = static_cast<double>(unit);
  in.device_bytes = static_cast<double>(problem.parameter_bytes());
  in.gradient_bytes = static_cast<double>(problem.gradient_bytes());
  in.moment_bytes = static_cast<double>(moment_bytes(workload.moments));
  in.activation_elements = static_cast<double>(activation) / in.device_bytes;

  Task task;
  task.kind = TaskKind::forward;
  task.flops = model.block_forward_flops(b, t);
  in.forward_seconds = seconds(problem, task);
  task.kind = TaskKind::backward;
  task.recomputes_output = true;
  task.flops = 2 * model.block_forward_flops(b, t) + recompute_flops(problem, saved_none, true);
  in.backward_seconds = std::max(0.0, seconds(problem, task) - in.forward_seconds);
  task.recomputes_output = false;
  task.kind = TaskKind::head;
  task.flops = 3 * model.head_forward_flops(b, t);
  in.other_seconds = seconds(problem, task);

  // What is in GPU memory whatever the placement: parameters and gradients of two units, the
  // embedding's with both its gradients, activations and scratch of the running tasks.
  const std::uint64_t working =
      std::max(head_scratch_bytes(problem), backward_scratch_bytes(problem, saved_none)) +
      saved_bytes(problem, saved_all);
  const std::uint64_t width = problem.parameter_bytes(), gradient = problem.gradient_bytes();
  in.gpu_memory = std::max(0.0, static_cast<double>(machine.gpu.memory) -
                                    sum({2 * unit * width, 2 * unit * gradient, embedding * width,
                                         2 * embedding * gradient, 6 * activation, working}));
  // And in host memory: the embedding's optimizer state, gradients and updated parameters.
  in.host_memory = std::max(0.0, static_cast<double>(machine.host.memory) -
                                     sum({problem.state_bytes() * embedding,
                                          2 * embedding * gradient, embedding * width}));
  in.pcie = std::min(needed(problem, machine.pcie.h2d, "pcie.h2d"),
                     needed(problem, machine.pcie.d2h, "pcie.d2h"));
  if (machine.pcie.total > 0) in.pcie = std::min(in.pcie, machine.pcie.total);
  const Machine::Ssd::Row ssd = machine.ssd.at_queue_depth();
  in.ssd_read = needed(problem, ssd.read, "ssd.read");
  in.ssd_write = needed(problem, ssd.write, "ssd.write");
  in.ssd_law = machine.ssd.law;
  in.ssd_total = ssd.total > 0 ? ssd.total : std::max(ssd.read, ssd.write);
  in.adam_rate = needed(problem, machine.host.adam_params_per_second, "host.adam_rate");
  if (machine.host.bandwidth > 0 && machine.host.adam_bytes_per_param > 0) {
    in.adam_rate =
        std::min(in.adam_rate, machine.host.bandwidth / machine.host.adam_bytes_per_param);
  }
  in.adam_rate /= problem.adam_share_of_fp32();
  return in;
}

}  // namespace spillway
