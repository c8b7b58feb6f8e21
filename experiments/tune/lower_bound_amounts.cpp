#include "experiments/tune/lower_bound_amounts.hpp"

#include <algorithm>
#include <limits>

#include "experiments/plan/write_cache.hpp"
#include "policies/machine/machine_drives.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/saved.hpp"
#include "policies/model/scratch.hpp"

namespace spillway {

namespace {

constexpr Work works[flow_count] = {Work::gpu_optimizer, Work::cpu_optimizer, Work::h2d,
                                    Work::d2h,           Work::read,          Work::write};

template <class Number>
double real(Number number) {
  return static_cast<double>(number);
}

// The choices that are corners of the lower convex hull over (bytes, seconds).
std::vector<SaveChoice> lower_hull(std::vector<SaveChoice> all) {
  std::stable_sort(all.begin(), all.end(), [](const SaveChoice& a, const SaveChoice& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.backward_seconds < b.backward_seconds;
  });
  std::vector<SaveChoice> hull;
  for (const SaveChoice& next : all) {
    if (!hull.empty() && next.backward_seconds >= hull.back().backward_seconds) continue;
    const auto is_above_line = [&](const SaveChoice& from, const SaveChoice& middle) {
      return (middle.backward_seconds - from.backward_seconds) * (next.bytes - from.bytes) >=
             (next.backward_seconds - from.backward_seconds) * (middle.bytes - from.bytes);
    };
    while (hull.size() > 1 && is_above_line(hull[hull.size() - 2], hull.back())) hull.pop_back();
    hull.push_back(next);
  }
  return hull;
}

// What one of several ranks has at the least of model states: they share them out.
double of_rank(const Problem& problem, std::int64_t elements) {
  return real(elements) / real(problem.workload.ranks);
}

Task compute_task(TaskKind kind, std::uint64_t bytes, double flops) {
  Task task;
  task.kind = kind;
  task.lane = Lane::gpu_compute;
  task.bytes = bytes;
  task.flops = flops;
  return task;
}

// Of a layer that saved the tensors of `mask`. With none of them the layer's output may be
// recomputed, too, which measured kernels may say takes less.
double backward(const Problem& problem, const Costs& costs, SavedMask mask) {
  double least = std::numeric_limits<double>::infinity();
  for (const bool output : {false, true}) {
    if (output && mask != saved_none) continue;
    Task task = compute_task(TaskKind::backward, 0, backward_flops(problem, mask, output));
    task.available = mask;
    task.recomputes_output = output;
    least = std::min(least, costs.seconds(task));
  }
  return least;
}

// Where drives empty their write cache, a step may write at its rate all the time; and a CPU's
// caches may hold all operands of every layer.
Problem at_its_fastest(Problem problem) {
  const std::optional<WriteCache> cache = write_cache_of(problem.machine);
  if (cache && cache->recovery > 0) problem.machine.ssd.write = cache->write;
  problem.machine = with_drives_together(std::move(problem.machine));
  problem.machine.kernels = with_operands_in_caches(std::move(problem.machine.kernels));
  return problem;
}

}  // namespace

StepAmounts::StepAmounts(const Problem& problem)
    : layers(real(problem.model.layers)),
      micro_batches(real(problem.workload.micro_batches())),
      backward_layers(layers - real(first_backward_layer(problem.model))),
      layer_elements(of_rank(problem, unit_elements(problem.model, 0))),
      embedding_elements(
          of_rank(problem, unit_elements(problem.model, embedding_unit(problem.model)))),
      head_elements(of_rank(problem, spillway::outer_elements(problem.model)) - embedding_elements),
      state_elements(
          backward_layers *
              of_rank(problem, trained_elements(problem.model, problem.model.layers - 1)) +
          of_rank(problem, outer_trained_elements(problem.model))),
      parameter_bytes(real(problem.parameter_bytes())),
      gradient_bytes(real(problem.gradient_bytes())),
      state_bytes(real(problem.state_bytes())),
      checkpoint(real(checkpoint_bytes(problem))),
      updates_wait(problem.workload.updates_wait()),
      gpu_memory(real(problem.machine.gpu.memory)),
      host_memory(real(problem.machine.host.memory)),
      ssd_memory(problem.machine.ssd.count > 0 ? real(problem.machine.drive_capacity()) : 0) {
  // All that is frozen may rest there without taking space.
  if (problem.frozen_in_place && ssd_memory > 0)
    ssd_memory += parameter_bytes * (all_layer_elements() + outer_elements() - state_elements);
  const Problem fastest = at_its_fastest(problem);
  const Costs costs(fastest);
  find_seconds(problem, costs);
  find_saves(problem, costs);
  find_flows(costs);
}

void StepAmounts::find_seconds(const Problem& problem, const Costs& costs) {
  head = costs.seconds(compute_task(TaskKind::head, 0, head_flops(problem)));
  const std::uint64_t up = embed_forward_bytes(problem), down = embed_backward_bytes(problem);
  embed_forward = costs.seconds(compute_task(TaskKind::embed_forward, up, 0));
  if (trained_elements(problem.model, embedding_unit(problem.model)) > 0) {
    const auto clear = static_cast<std::uint64_t>(
        real(unit_elements(problem.model, embedding_unit(problem.model))) * gradient_bytes);
    embed_backward = costs.seconds(compute_task(TaskKind::embed_backward, down, 0));
    Task first = compute_task(TaskKind::embed_backward, down + clear, 0);
    first.first_micro_batch = true;
    embed_clear = std::max(0.0, costs.seconds(first) - embed_backward);
  }
  if (!problem.workload.needs_norms() || !costs.knows(Work::gpu_norm)) return;
  Task gradient_norm = compute_task(TaskKind::gradient_norm, 0, 0);
  gradient_norm.bytes = static_cast<std::uint64_t>(
      of_rank(problem, trained_elements(problem.model, problem.model.layers - 1)) * gradient_bytes);
  norm = costs.seconds(gradient_norm);
}

void StepAmounts::find_saves(const Problem& problem, const Costs& costs) {
  constexpr double unknown = std::numeric_limits<double>::infinity();
  forward = last_backward = forward_working = backward_working = unknown;
  std::vector<SaveChoice> all;
  for (int bits = 0; bits <= saved_all(problem.model); ++bits) {
    const auto mask = static_cast<SavedMask>(bits);
    Task task = compute_task(TaskKind::forward, 0, forward_flops(problem));
    task.saves = mask;
    forward = std::min(forward, costs.seconds(task));
    const double bytes = real(saved_bytes(problem, mask)), seconds = backward(problem, costs, mask);
    all.push_back({mask, bytes, seconds});
    last_backward = std::min(last_backward, seconds);
    forward_working = std::min(forward_working, bytes + real(forward_scratch_bytes(problem, mask)));
    backward_working =
        std::min(backward_working, bytes + real(backward_scratch_bytes(problem, mask)));
  }
  saves = lower_hull(std::move(all));
  forward_working += checkpoint;
  backward_working += checkpoint;
}

void StepAmounts::find_flows(const Costs& costs) {
  std::array<double, flow_count> amount_of{};  // of Costs, by a unit of the flow
  for (std::size_t flow = 0; flow < flow_count; ++flow) {
    const Work work = works[flow];
    amount_of[flow] = 0;
    if (!costs.knows(work)) continue;
    const double rate = costs.rate(work);
    const double updates = work == Work::gpu_optimizer ? costs.updates_per_second(Lane::gpu_compute)
                           : work == Work::cpu_optimizer
                               ? costs.updates_per_second(Lane::cpu_optimizer)
                               : rate;
    amount_of[flow] = rate / updates;
    lane_seconds[flow] = 1 / updates;
  }
  const auto seconds_of = [&](Work work, std::size_t resource) {
    for (const Usage& usage : costs.demand(work).usages) {
      if (usage.resource == resource) return usage.per_unit / costs.resources()[resource].capacity;
    }
    return 0.0;
  };
  for (std::size_t r = 0; r < costs.resources().size(); ++r) {
    SharedResource resource{costs.resources()[r].name, seconds_of(Work::compute, r), {}};
    int users = resource.seconds_of_compute > 0 ? 1 : 0;
    for (std::size_t flow = 0; flow < flow_count; ++flow) {
      if (amount_of[flow] > 0)
        resource.seconds_of[flow] = amount_of[flow] * seconds_of(works[flow], r);
      users += resource.seconds_of[flow] > 0 ? 1 : 0;
    }
    // What one kind of work has for itself limits its lane already; compute and the GPU's updates
    // share a lane, too.
    if (users > 1 && resource.name != "gpu") shared.push_back(resource);
  }
}

double StepAmounts::least_compute() const {
  const double of_micro_batch = layers * forward +
                                (backward_layers - 1) * saves.back().backward_seconds +
                                last_backward + head + embed_forward + embed_backward;
  return micro_batches * of_micro_batch + embed_clear + backward_layers * norm;
}

double StepAmounts::about_a_step() const {
  const double elements = all_layer_elements() + outer_elements();
  const double bytes = elements * (parameter_bytes + gradient_bytes);
  const auto takes = [&](Flow flow, double amount) {
    return amount * lane_seconds[index_of(flow)];
  };
  double seconds = least_compute() + takes(Flow::h2d, bytes) + takes(Flow::cpu_update, elements);
  if (elements * (parameter_bytes + state_bytes) > gpu_memory + host_memory)
    seconds +=
        takes(Flow::read, elements * state_bytes) + takes(Flow::write, elements * state_bytes);
  return seconds;
}

}  // namespace spillway
