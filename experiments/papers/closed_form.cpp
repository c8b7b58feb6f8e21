#include "experiments/papers/closed_form.hpp"

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "experiments/papers/paper_points.hpp"
#include "policies/cost/costs.hpp"
#include "policies/framework/framework.hpp"

namespace spillway {

namespace {

// By Phase; of a step in the middle, which has all of its work.
using AmountsByPhase = std::array<PhaseAmounts, phase_count>;

// What rests on the drives and a task reads or writes there. Its other end says little: DeepSpeed
// stages gradients in the slots of optimizer states.
BufferKind kind_on_drives(const Schedule& schedule, const Task& task) {
  for (const Access& access : schedule.accesses(task)) {
    const BufferInfo& buffer = schedule.buffers()[access.buffer];
    if (buffer.tier == Tier::ssd) return buffer.kind;
  }
  SPILLWAY_ASSERT(false);
}

// Updates, and what they read and write of the drives, are the optimizer's wherever in a step they
// run; gradients are written in backward.
Phase phase_of(const Schedule& schedule, const Task& task) {
  if (task.kind == TaskKind::optimizer) return Phase::optimizer;
  if (task.kind != TaskKind::read && task.kind != TaskKind::write) return task.phase;
  const BufferKind kind = kind_on_drives(schedule, task);
  const bool is_new_parameters = kind == BufferKind::parameters && task.kind == TaskKind::write;
  return kind == BufferKind::optimizer_state || is_new_parameters ? Phase::optimizer : task.phase;
}

AmountsByPhase amounts_of(const Schedule& schedule) {
  AmountsByPhase all;
  const Costs costs(schedule.problem());
  for (const Task& task : schedule.tasks()) {
    if (task.step != schedule.steps() / 2) continue;
    PhaseAmounts& phase = all[static_cast<std::size_t>(phase_of(schedule, task))];
    const auto bytes = static_cast<double>(task.bytes);
    phase.flops += task.flops;
    switch (task.kind) {
      case TaskKind::h2d:
        (task.pageable ? phase.pageable_to_gpu : phase.to_gpu) += bytes;
        break;
      case TaskKind::d2h:
        (task.pageable ? phase.pageable_from_gpu : phase.from_gpu) += bytes;
        break;
      case TaskKind::read:
        phase.read += bytes;
        break;
      case TaskKind::write:
        phase.written += bytes;
        break;
      case TaskKind::optimizer:
        (task.lane == Lane::gpu_compute ? phase.gpu_params : phase.cpu_params) +=
            static_cast<double>(task.params);
        phase.cpu_passes += static_cast<double>(task.params) * task.pass_bytes;
        break;
      case TaskKind::broadcast:
      case TaskKind::all_gather:
      case TaskKind::reduce_scatter:
      case TaskKind::all_reduce: {
        const TaskCost cost = costs.of(task, schedule.groups());
        phase.collective_seconds +=
            static_cast<double>(cost.latency_ns) * 1e-9 +
            cost.amount / full_rate(costs.resources(), costs.collective_demand(cost.variant));
        break;
      }
      default:
        break;
    }
  }
  return all;
}

double over(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

}  // namespace

PhaseAmounts& PhaseAmounts::operator+=(const PhaseAmounts& other) {
  flops += other.flops;
  gpu_params += other.gpu_params;
  to_gpu += other.to_gpu;
  from_gpu += other.from_gpu;
  pageable_to_gpu += other.pageable_to_gpu;
  pageable_from_gpu += other.pageable_from_gpu;
  read += other.read;
  written += other.written;
  cpu_params += other.cpu_params;
  cpu_passes += other.cpu_passes;
  collective_seconds += other.collective_seconds;
  return *this;
}

double closed_form_seconds(const PhaseAmounts& amounts, const Problem& problem) {
  const Machine& machine = problem.machine;
  const Framework framework = load_framework(problem.framework);
  const auto pageable = [](double bytes, double rate, double pinned) {
    return over(bytes, rate > 0 ? rate : pinned);
  };
  const double copies_in =
      pageable(amounts.pageable_to_gpu, machine.pcie.pageable_h2d, machine.pcie.h2d);
  const double copies_out =
      pageable(amounts.pageable_from_gpu, machine.pcie.pageable_d2h, machine.pcie.d2h);
  const double gpu = over(amounts.flops, machine.gpu.flops) * framework.compute_time +
                     over(amounts.gpu_params, machine.gpu.adam_params_per_second) + copies_in +
                     copies_out;
  const double to_gpu = over(amounts.to_gpu, machine.pcie.h2d) + copies_in;
  const double from_gpu = over(amounts.from_gpu, machine.pcie.d2h) + copies_out;
  const double both_ways =
      over(amounts.to_gpu + amounts.from_gpu, machine.pcie.total) + copies_in + copies_out;
  const double drives = Costs(problem).drives().seconds(amounts.read, amounts.written);
  const double adam = machine.host.adam_params_per_second;
  const double cpu =
      over(amounts.cpu_params, adam) +
      over(amounts.cpu_passes, adam * machine.host.adam_bytes_per_param) * framework.cpu_pass_time;
  return std::max({gpu, to_gpu, from_gpu, both_ways, drives, cpu, amounts.collective_seconds});
}

double closed_form(const Schedule& schedule, Overlap overlap, const PaperExperiment& experiment) {
  const Problem& problem = schedule.problem();
  const AmountsByPhase phases = amounts_of(schedule);
  const PhaseAmounts& forward = phases[static_cast<std::size_t>(Phase::forward)];
  const PhaseAmounts& backward = phases[static_cast<std::size_t>(Phase::backward)];
  const PhaseAmounts& optimizer = phases[static_cast<std::size_t>(Phase::optimizer)];
  const auto seconds = [&](const PhaseAmounts& amounts) {
    return closed_form_seconds(amounts, problem);
  };
  PhaseAmounts hidden = backward, whole = forward;
  hidden += optimizer;
  whole += hidden;
  const double step = overlap == Overlap::all ? seconds(whole)
                      : overlap == Overlap::optimizer
                          ? seconds(forward) + seconds(hidden)
                          : seconds(forward) + seconds(backward) + seconds(optimizer);
  const double tokens =
      static_cast<double>(problem.workload.batch * problem.workload.sequence) / step;
  switch (experiment.quantity) {
    case Quantity::step_seconds:
      return step;
    case Quantity::forward_seconds:
      return seconds(forward);
    case Quantity::backward_seconds:
      return seconds(overlap == Overlap::nothing ? backward : hidden);
    case Quantity::optimizer_seconds:
      return seconds(optimizer);
    case Quantity::backward_optimizer_seconds:
      return overlap == Overlap::nothing ? seconds(backward) + seconds(optimizer) : seconds(hidden);
    case Quantity::tokens_per_second:
    case Quantity::tokens_per_gpu_second:
    case Quantity::tflops:
    case Quantity::mfu:
      return throughput_of(tokens, problem, experiment);
    case Quantity::seconds_per_micro_batch:
    case Quantity::wan_speed_up:
    case Quantity::prefill_utilization:
      break;  // pipeline_value()
  }
  SPILLWAY_ASSERT(false);
}

Overlap overlap_of(const PaperSystem& system) {
  if (system.overlap) return *system.overlap;
  const Framework framework = load_framework(system.framework);
  const bool waits =
      std::any_of(framework.waits.begin(), framework.waits.end(), [](const WaitRule& rule) {
        return rule.at == HostPoint::optimizer_begins && rule.waits_for == LaneSet::all();
      });
  return waits ? Overlap::nothing : Overlap::optimizer;
}

}  // namespace spillway
