#include "policies/cost/kernel_times.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/errors.hpp"
#include "policies/cost/shape_times.hpp"
#include "policies/model/operators.hpp"
#include "policies/schedule/caches.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

namespace {

// Of a shape that says that operands were in the caches, the shape of that kernel; else nothing.
std::optional<std::string> shape_in_caches(const std::string& shape) {
  if (!shape.ends_with(in_caches_suffix)) return std::nullopt;
  return shape.substr(0, shape.size() - std::string_view(in_caches_suffix).size());
}

// The sample nearest in FLOPs by ratio; of `kind` only, unless that is empty.
const KernelTime* nearest(const Machine& machine, const std::string& kind, double flops) {
  const KernelTime* best = nullptr;
  double best_distance = std::numeric_limits<double>::infinity();
  for (const KernelTime& kernel : machine.kernels) {
    if (!(kernel.flops > 0) || kernel.median_ns <= 0 || (!kind.empty() && kernel.kind != kind))
      continue;
    if (shape_in_caches(kernel.shape)) continue;
    const double distance = std::abs(std::log(kernel.flops / flops));
    if (distance < best_distance) {
      best = &kernel;
      best_distance = distance;
    }
  }
  return best;
}

double seconds_of(const KernelTime& kernel) { return static_cast<double>(kernel.median_ns) * 1e-9; }

}  // namespace

std::vector<KernelTime> with_operands_in_caches(std::vector<KernelTime> kernels) {
  for (const KernelTime& one : std::vector<KernelTime>(kernels)) {
    const auto shape = shape_in_caches(one.shape);
    if (!shape) continue;
    for (KernelTime& kernel : kernels) {
      if (kernel.kind == one.kind && kernel.shape == *shape)
        kernel.median_ns = std::min(kernel.median_ns, one.median_ns);
    }
  }
  return kernels;
}

std::uint64_t compute_key(const Task& task) {
  return static_cast<std::uint64_t>(task.kind) << 40 |
         static_cast<std::uint64_t>(task.available) << 24 |
         static_cast<std::uint64_t>(task.saves) << 8 |
         static_cast<std::uint64_t>(task.in_caches) << 3 |
         static_cast<std::uint64_t>(task.loss_only) << 2 |
         static_cast<std::uint64_t>(task.recomputes_output) << 1 |
         static_cast<std::uint64_t>(task.first_micro_batch);
}

KernelTimes::KernelTimes(const Problem& problem) : problem_(problem) {
  for (const KernelTime& kernel : problem.machine.kernels) {
    if (kernel.median_ns <= 0) continue;
    const auto shape = shape_in_caches(kernel.shape);
    (shape ? cached_ : measured_)
        .emplace(std::pair(kernel.kind, shape.value_or(kernel.shape)), &kernel);
  }
}

KernelEstimate KernelTimes::estimate(const Task& task) const {
  const auto [entry, is_new] = known_.try_emplace(compute_key(task));
  if (is_new) {
    entry->second = look_up(task);
    if (task.in_caches > 0 && !cached_.empty())
      entry->second.seconds = in_caches(task, entry->second.seconds);
  }
  return entry->second;
}

bool KernelTimes::any() const {
  return std::any_of(measured_.begin(), measured_.end(),
                     [](const auto& one) { return one.second->flops > 0; });
}

double KernelTimes::gradient_norm_rate(Lane lane) const {
  double rate = 0, most_bytes = 0;
  const std::string prefix = gradient_norm_shape(lane, 0);
  const std::size_t number = prefix.size() - 1;
  for (const auto& [key, kernel] : measured_) {
    if (key.first != to_string(TaskKind::gradient_norm)) continue;
    if (key.second.compare(0, number, prefix, 0, number) != 0) continue;
    const double bytes = std::strtod(key.second.c_str() + number, nullptr);
    if (bytes <= most_bytes) continue;
    most_bytes = bytes;
    rate = bytes / seconds_of(*kernel);
  }
  if (rate > 0 || (lane == Lane::gpu_compute && !problem_.machine.gpu.is_cpu)) return rate;
  const auto found = measured_.find({to_string(TaskKind::gradient_norm), gradient_norm_shape()});
  if (found == measured_.end()) return 0;
  return static_cast<double>(gradient_norm_sample * 4) / seconds_of(*found->second);
}

double KernelTimes::in_caches(const Task& task, double seconds) const {
  const KernelTime* const exact = measured(task, cached_);
  const std::optional<double> all =
      exact != nullptr ? std::optional(seconds_of(*exact)) : between(task, cached_);
  if (!all || *all >= seconds) return seconds;
  return seconds - task.in_caches * (seconds - *all) / all_in_caches;
}

KernelEstimate KernelTimes::look_up(const Task& task) const {
  if (task.loss_only) {
    // The forward's share of all that the head does.
    Task whole = task;
    whole.loss_only = false;
    whole.flops = head_flops(problem_);
    return {task.flops / whole.flops * look_up(whole).seconds, true};
  }
  if (measured_.empty()) return {extrapolate(task), true};
  if (const KernelTime* exact = measured(task)) return {seconds_of(*exact), false};
  if (task.kind == TaskKind::input_gradient || task.kind == TaskKind::weight_gradient)
    return pass_of_backward(task);
  if (const auto inside = between(task, measured_)) return {*inside, false};
  if (const auto parts = by_groups(task)) return {*parts, false};
  return {extrapolate(task), true};
}

// The gradient of the weights has the share of its FLOPs in a backward that recomputes nothing, and
// that of the input is the rest of the whole backward.
KernelEstimate KernelTimes::pass_of_backward(const Task& task) const {
  const auto backward = [&](SavedMask available, bool output) {
    Task whole = task;
    whole.kind = TaskKind::backward;
    whole.available = available;
    whole.recomputes_output = output;
    whole.flops = backward_flops(problem_, available, output);
    return whole;
  };
  const SavedMask all = saved_all(problem_.model);
  Task weights = task;
  weights.kind = TaskKind::weight_gradient;
  KernelEstimate of_weights;
  if (const KernelTime* exact = measured(weights)) {
    of_weights = {seconds_of(*exact), false};
  } else {
    of_weights = {look_up(backward(all, false)).seconds * weight_gradient_flops(problem_) /
                      backward_flops(problem_, all, false),
                  true};
  }
  if (task.kind == TaskKind::weight_gradient) return of_weights;
  const double whole = look_up(backward(task.available, task.recomputes_output)).seconds;
  return {std::max(whole - of_weights.seconds, 0.0), true};
}

const KernelTime* KernelTimes::measured(const Task& task, const Table& table) const {
  const auto found = table.find({to_string(task.kind), kernel_shape(problem_, task)});
  return found != table.end() ? found->second : nullptr;
}

// Layers and the head work on one group of sequences after another on a GPU: each takes what a
// micro-batch of as many does.
std::optional<double> KernelTimes::by_groups(const Task& task) const {
  const Workload& workload = problem_.workload;
  const bool in_groups = is_layer_pass(task.kind) || task.kind == TaskKind::head;
  const std::int64_t at_once = workload.sequences_at_once;
  if (!in_groups || problem_.machine.gpu.is_cpu || at_once == workload.micro_batch) return {};
  Problem group;
  group.model = problem_.model;
  group.machine.name = problem_.machine.name;
  group.machine.kernels = problem_.machine.kernels;
  group.workload = workload;
  group.workload.batch = group.workload.micro_batch = at_once;
  group.workload.ranks = group.workload.gradient_groups = 1;
  group.workload.gradient =
      problem_.gradient_bytes() == 2 ? GradientWidth::bits16 : GradientWidth::bits32;
  const KernelTimes times(group);
  const double groups = static_cast<double>(workload.micro_batch / at_once);
  if (const KernelTime* exact = times.measured(task)) return groups * seconds_of(*exact);
  if (const auto inside = times.between(task, times.measured_)) return groups * *inside;
  return {};
}

// The time of a layer that keeps some of its tensors.
std::optional<double> KernelTimes::between(const Task& task, const Table& table) const {
  Task nothing_kept = task, all_kept = task;
  double share = 0;  // of the way from keeping nothing to keeping all
  if (task.kind == TaskKind::forward) {
    nothing_kept.saves = saved_none;
    all_kept.saves = saved_all(problem_.model);
    share = static_cast<double>(saved_bytes(problem_, task.saves)) /
            static_cast<double>(saved_bytes(problem_, all_kept.saves));
  } else if (task.kind == TaskKind::backward) {
    nothing_kept.available = saved_none;
    all_kept.available = saved_all(problem_.model);
    all_kept.recomputes_output = false;
  } else {
    return std::nullopt;
  }
  const KernelTime* nothing = measured(nothing_kept, table);
  const KernelTime* everything = measured(all_kept, table);
  if (nothing == nullptr || everything == nullptr) return std::nullopt;
  if (task.kind == TaskKind::backward)
    share = 1 - recompute_share(task, all_kept, seconds_of(*everything));
  return seconds_of(*nothing) + share * (seconds_of(*everything) - seconds_of(*nothing));
}

// Of what recomputing everything takes: each group of tensors that is not available costs what it
// costs when it alone is missing, for each is computed once, from the ones before it.
double KernelTimes::recompute_share(const Task& task, const Task& all_kept,
                                    double all_seconds) const {
  double missing = 0, sum = 0;
  for (const SavedMask group : recompute_groups(problem_.model)) {
    Task one = all_kept;
    one.available = saved_others(problem_.model, group);
    const KernelTime* const time = measured(one);
    if (time == nullptr) {
      sum = 0;
      break;
    }
    const double seconds = std::max(0.0, seconds_of(*time) - all_seconds);
    sum += seconds;
    if ((task.available & group) != group) missing += seconds;
  }
  if (sum > 0 && !task.recomputes_output) return missing / sum;
  const bool output = task.recomputes_output;
  return recompute_flops(problem_, task.available, output) /
         recompute_flops(problem_, saved_none, output);
}

// What the products of adapters take beside their FLOPs, on a GPU whose bandwidth is known.
double KernelTimes::adapter_seconds(const Task& task) const {
  const double bandwidth = problem_.machine.gpu.memory_bandwidth;
  const bool is_layer = task.kind == TaskKind::forward || task.kind == TaskKind::backward;
  if (!problem_.model.has_adapters() || bandwidth <= 0 || !is_layer) return 0;
  auto bytes = static_cast<double>(adapter_forward_bytes(problem_));
  if (task.kind == TaskKind::backward) {
    // Of forward's, the share that is computed again.
    bytes *=
        recompute_flops(problem_, task.available, task.recomputes_output) / forward_flops(problem_);
    bytes += static_cast<double>(adapter_backward_bytes(problem_));
  }
  return bytes / bandwidth;
}

// Without any measured kernel.
double KernelTimes::by_flops(const Task& task) const {
  const ShapeTimes shapes(problem_);
  return shapes.known() ? shapes.seconds(task) : task.flops / problem_.machine.gpu.flops;
}

double KernelTimes::extrapolate(const Task& task) const {
  const Machine& machine = problem_.machine;
  if (task.flops > 0) {
    // Where products were measured by shape, they say more than a kernel of another one.
    if (!machine.gpu.by_shape.empty() && !machine.gpu.is_cpu)
      return by_flops(task) + adapter_seconds(task);
    const KernelTime* sample = nearest(machine, to_string(task.kind), task.flops);
    if (sample == nullptr) sample = nearest(machine, "", task.flops);
    if (sample != nullptr)
      return task.flops / sample->flops * static_cast<double>(sample->median_ns) * 1e-9;
    if (machine.gpu.flops > 0) return by_flops(task) + adapter_seconds(task);
    throw InputError(fmt::format("machine {}: nothing says how long {} takes", machine.name,
                                 to_string(task.kind)),
                     "run `spillway calibrate`, or give gpu.flops");
  }
  const double bandwidth =
      machine.gpu.memory_bandwidth > 0 ? machine.gpu.memory_bandwidth : machine.host.bandwidth;
  return bandwidth > 0 ? static_cast<double>(task.bytes) / bandwidth : 0;
}

}  // namespace spillway
