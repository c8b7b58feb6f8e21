#include "sim/steady_state.hpp"

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "policies/model/operators.hpp"

namespace spillway {

namespace {

constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }

// Divides each steady step by what the GPU does: the time up to the end of a compute task, waiting
// included, belongs to the task's phase; what is left after the step's last one to the optimizer.
PhaseSeconds phase_seconds(const Schedule& schedule, const SimulationResult& result,
                           const SteadyWindow& window) {
  const std::vector<std::int64_t>& step_ends = result.step_ends_ns;
  std::vector<std::int64_t> reached(step_ends.size());  // by step: how far it has been divided
  for (std::size_t step = 0; step < reached.size(); ++step) {
    reached[step] = step > 0 ? step_ends[step - 1] : 0;
  }
  std::array<std::int64_t, phase_count> spent{};
  const auto divide = [&](std::size_t step, Phase phase, std::int64_t until) {
    const std::int64_t end = std::min(until, step_ends[step]);
    if (end <= reached[step]) return;
    spent[static_cast<std::size_t>(phase)] += end - reached[step];
    reached[step] = end;
  };
  const std::span<const Task> tasks = schedule.tasks();
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (tasks[t].lane != Lane::gpu_compute || !window.counts(tasks[t])) continue;
    divide(static_cast<std::size_t>(tasks[t].step), tasks[t].phase, result.tasks[t].end_ns);
  }
  const auto first = static_cast<std::size_t>(window.first_step);
  for (std::size_t step = first; step < first + static_cast<std::size_t>(window.steps); ++step) {
    divide(step, Phase::optimizer, step_ends[step]);
  }
  const double per_step = 1e-9 / window.steps;
  const auto seconds = [&](Phase phase) {
    return static_cast<double>(spent[static_cast<std::size_t>(phase)]) * per_step;
  };
  return {seconds(Phase::forward), seconds(Phase::backward), seconds(Phase::optimizer)};
}

// How much of a task counts, each 0 .. 1.
struct Portion {
  double latency = 0, work = 0;
};

// Seconds per steady step that lanes and resources need at least.
struct Demands {
  std::array<double, lane_count> lanes{};
  std::vector<double> resources;
};

template <class PortionOf>
Demands demands_of(const ActivityGraph& graph, const FairSharing& sharing, int steps,
                   const PortionOf& portion_of) {
  const double per_step = 1.0 / steps;
  Demands demands;
  demands.resources.resize(graph.resources.size(), 0);
  for (TaskId t = 0; t < graph.activities.size(); ++t) {
    const Portion portion = portion_of(t);
    const Activity& activity = graph.activities[t];
    const double latency_ns = static_cast<double>(activity.latency_ns);
    demands.lanes[activity.lane] +=
        (portion.latency * latency_ns +
         portion.work * (uncontended_ns(activity, sharing) - latency_ns)) *
        1e-9 * per_step;
    const double amount = portion.work * activity.amount * per_step;
    if (amount == 0) continue;
    const Demand& demand = graph.demands[activity.demand];
    for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
      const Usage& usage = demand.usages[u];
      demands.resources[usage.resource] +=
          amount * usage.per_unit / graph.resources[usage.resource].capacity;
    }
  }
  return demands;
}

// The least of `task` that can have run inside the window: outside it, it ran at its full rate at
// most. Its times are rounded, so what is outside may be a nanosecond more than it looks.
Portion inside(const SteadyWindow& window, const SimulatedTask& task, const Activity& activity,
               const FairSharing& sharing) {
  const auto outside_ns = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t in_window =
        std::max<std::int64_t>(0, std::min(end, window.end_ns) - std::max(begin, window.begin_ns));
    const std::int64_t outside = end - begin - in_window;
    return static_cast<double>(outside > 0 ? outside + 1 : 0);
  };
  const std::int64_t work_begin = std::min(task.start_ns + activity.latency_ns, task.end_ns);
  const double latency_ns = static_cast<double>(activity.latency_ns);
  const double work_ns = uncontended_ns(activity, sharing) - latency_ns;
  Portion portion;
  if (latency_ns > 0)
    portion.latency = std::max(0.0, 1 - outside_ns(task.start_ns, work_begin) / latency_ns);
  if (work_ns > 0) portion.work = std::max(0.0, 1 - outside_ns(work_begin, task.end_ns) / work_ns);
  return portion;
}

// `result` has lanes and resources.
template <class Result>
void set_demands(const ActivityGraph& graph, const Demands& demands, Result& result) {
  for (std::size_t lane = 0; lane < demands.lanes.size(); ++lane)
    result.lanes[lane].demand_seconds = demands.lanes[lane];
  for (std::size_t r = 0; r < demands.resources.size(); ++r)
    result.resources.push_back({graph.resources[r].name, demands.resources[r]});
}

// What lanes and resources must do in a steady step, and the bound that follows.
void measure_demand(const Schedule& schedule, const ActivityGraph& graph,
                    const SteadyWindow& window, SimulationResult& result) {
  const FairSharing sharing(graph.resources, graph.demands);
  const std::span<const Task> tasks = schedule.tasks();
  const Demands demands = demands_of(graph, sharing, window.steps, [&](TaskId t) {
    return window.counts(tasks[t]) ? Portion{1, 1} : Portion{};
  });
  set_demands(graph, demands, result);
  find_bound(result);
  if (result.bound_seconds <= result.step_seconds + 1e-9) return;
  // Not steady: the window holds less than the work of its steps, for some of it ran before. No
  // window can be shorter than what ran inside it.
  const Demands ran = demands_of(graph, sharing, window.steps, [&](TaskId t) {
    return inside(window, result.tasks[t], graph.activities[t], sharing);
  });
  SimulationResult of_window;
  set_demands(graph, ran, of_window);
  find_bound(of_window);
  result.bound_seconds = of_window.bound_seconds;
  result.bound_by = of_window.bound_by;
}

bool moves_bytes(const Task& task) {
  return task.lane != Lane::gpu_compute && task.lane != Lane::cpu_optimizer;
}

// What the tasks did: time and bytes by lane, FLOPs.
void measure_work(const Schedule& schedule, const SteadyWindow& window, SimulationResult& result) {
  const double per_step = 1.0 / window.steps;
  double flops = 0;
  const std::span<const Task> tasks = schedule.tasks();
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const Task& task = tasks[t];
    LaneUse& lane = result.lanes[index_of(task.lane)];
    const std::int64_t inside = std::min(result.tasks[t].end_ns, window.end_ns) -
                                std::max(result.tasks[t].start_ns, window.begin_ns);
    if (inside > 0) lane.busy_fraction += static_cast<double>(inside) * 1e-9 / window.seconds();
    if (!window.counts(task)) continue;
    flops += task.flops;
    if (moves_bytes(task)) lane.bytes += static_cast<double>(task.bytes) * per_step;
  }
  const Problem& problem = schedule.problem();
  for (int set = 0; set < most_drive_sets; ++set)
    result.ssd_bytes_written_per_step += result.lanes[index_of(write_lane(set))].bytes;
  result.ssd_bytes_written_per_step *= static_cast<double>(problem.machine.cluster.sharing);
  if (result.step_seconds > 0)
    result.hardware_tflops = flops * static_cast<double>(problem.workload.ranks) * per_step /
                             result.step_seconds * 1e-12;
}

}  // namespace

SteadyWindow steady_window(const std::vector<std::int64_t>& step_ends_ns) {
  const int all = static_cast<int>(step_ends_ns.size());
  const int until = all >= 4 ? all - 1 : all;
  SteadyWindow window;
  window.steps = std::max(1, until / 2);
  window.first_step = until - window.steps;
  window.begin_ns =
      window.first_step > 0 ? step_ends_ns[static_cast<std::size_t>(window.first_step - 1)] : 0;
  window.end_ns = step_ends_ns[static_cast<std::size_t>(until - 1)];
  return window;
}

std::vector<std::int64_t> step_ends(const Schedule& schedule,
                                    std::span<const SimulatedTask> times) {
  std::vector<std::int64_t> ends(static_cast<std::size_t>(schedule.steps()), 0);
  const std::span<const Task> tasks = schedule.tasks();
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (tasks[t].phase == Phase::epilogue) continue;
    SPILLWAY_ASSERT(tasks[t].step >= 0 && tasks[t].step < schedule.steps());
    std::int64_t& end = ends[static_cast<std::size_t>(tasks[t].step)];
    end = std::max(end, times[t].end_ns);
  }
  return ends;
}

TaskId last_task(const Schedule& schedule, const SimulationResult& result,
                 const SteadyWindow& window) {
  const std::span<const Task> tasks = schedule.tasks();
  for (TaskId task = 0; task < tasks.size(); ++task) {
    if (window.counts(tasks[task]) && result.tasks[task].end_ns == window.end_ns) return task;
  }
  SPILLWAY_ASSERT(false, "no task ends with the steady window");
}

void measure_steady_state(const Schedule& schedule, const ActivityGraph& graph,
                          SimulationResult& result) {
  const Problem& problem = schedule.problem();
  result.step_ends_ns = step_ends(schedule, result.tasks);
  const SteadyWindow window = steady_window(result.step_ends_ns);
  result.step_seconds = window.seconds() / window.steps;
  measure_work(schedule, window, result);
  measure_demand(schedule, graph, window, result);
  result.phases = phase_seconds(schedule, result, window);
  set_rates(problem, result);
}

TaskWork work_of(const Schedule& schedule, const ActivityGraph& graph,
                 const std::function<bool(const Task&)>& counts) {
  const std::span<const Task> tasks = schedule.tasks();
  TaskWork work;
  const FairSharing sharing(graph.resources, graph.demands);
  const Demands demands = demands_of(graph, sharing, 1, [&](TaskId t) {
    if (!counts(tasks[t])) return Portion{};
    work.flops += tasks[t].flops;
    if (moves_bytes(tasks[t]))
      work.lanes[index_of(tasks[t].lane)].bytes += static_cast<double>(tasks[t].bytes);
    return Portion{1, 1};
  });
  set_demands(graph, demands, work);
  return work;
}

void find_bound(SimulationResult& result) {
  result.bound_seconds = 0;
  for (std::size_t lane = 0; lane < result.lanes.size(); ++lane) {
    if (result.lanes[lane].demand_seconds <= result.bound_seconds) continue;
    result.bound_seconds = result.lanes[lane].demand_seconds;
    result.bound_by = to_string(static_cast<Lane>(lane));
  }
  for (const ResourceUse& resource : result.resources) {
    // A lane that is alone on a resource demands the same of both: it keeps the name of the lane.
    if (resource.demand_seconds <= result.bound_seconds * (1 + 1e-9)) continue;
    result.bound_seconds = resource.demand_seconds;
    result.bound_by = resource.name;
  }
}

void set_rates(const Problem& problem, SimulationResult& result) {
  if (result.step_seconds <= 0) return;
  const Workload& workload = problem.workload;
  result.tokens_per_second = static_cast<double>(workload.tokens_per_step()) / result.step_seconds;
  result.model_tflops =
      step_flops(problem.model, workload.batch, workload.sequence) / result.step_seconds * 1e-12;
  result.efficiency = result.bound_seconds / result.step_seconds;
  // The step time is made of times rounded to nanoseconds, the bound is not.
  if (result.efficiency > 1 && result.bound_seconds <= result.step_seconds + 1e-9)
    result.efficiency = 1;
}

}  // namespace spillway
