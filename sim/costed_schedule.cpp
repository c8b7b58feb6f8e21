#include "sim/costed_schedule.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/errors.hpp"
#include "policies/cost/costs.hpp"
#include "policies/cost/extrapolation.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

namespace {

// Between the first `count` tasks: every edge points forward, and successors are ascending.
void copy_edges(const Schedule& schedule, std::size_t count, ActivityGraph& graph) {
  const std::span<const std::uint32_t> predecessors = schedule.predecessor_counts().first(count);
  graph.predecessor_counts.assign(predecessors.begin(), predecessors.end());
  const Schedule::Successors successors = schedule.successors();
  if (count == schedule.tasks().size()) {
    graph.successor_offsets.assign(successors.begins.begin(), successors.begins.end());
    graph.successors.assign(successors.all.begin(), successors.all.end());
    return;
  }
  graph.successor_offsets.reserve(count + 1);
  graph.successor_offsets.push_back(0);
  for (TaskId t = 0; t < count; ++t) {
    for (const TaskId successor : schedule.successors(t)) {
      if (successor >= count) break;
      graph.successors.push_back(successor);
    }
    graph.successor_offsets.push_back(static_cast<std::uint32_t>(graph.successors.size()));
  }
}

// The demands of the graph: those of the works that its tasks do, in order of their first task.
class DemandsOfWorks {
 public:
  DemandsOfWorks(const Costs& costs, ActivityGraph& graph) : costs_(costs), graph_(graph) {
    index_.fill(none);
  }
  std::uint32_t index_of(const TaskCost& cost) {
    if (cost.work == Work::collective) return index_of_collective(cost.variant);
    const Work work = cost.work;
    std::uint32_t& index = index_[static_cast<std::size_t>(work)];
    if (index == none) {
      index = static_cast<std::uint32_t>(graph_.demands.size());
      graph_.demands.push_back(costs_.demand(work));
    }
    return index;
  }

 private:
  std::uint32_t index_of_collective(std::uint32_t variant) {
    if (variant >= collectives_.size()) collectives_.resize(variant + 1, none);
    std::uint32_t& index = collectives_[variant];
    if (index == none) {
      index = static_cast<std::uint32_t>(graph_.demands.size());
      graph_.demands.push_back(costs_.collective_demand(variant));
    }
    return index;
  }

  const Costs& costs_;
  ActivityGraph& graph_;
  std::array<std::uint32_t, work_count> index_;
  std::vector<std::uint32_t> collectives_;  // by variant
};

// Time is counted in whole nanoseconds of 64 bits: refuses what would take years. A task alone
// takes its latency, and its work at its own rate or at that of the slowest resource it needs.
void require_countable_time(const Schedule& schedule, const Problem& problem,
                            const ActivityGraph& graph) {
  constexpr double most_seconds = 1e8;
  std::vector<double> rates;
  for (const Demand& demand : graph.demands) rates.push_back(full_rate(graph.resources, demand));
  double seconds = 0;
  for (const Activity& activity : graph.activities) {
    seconds += static_cast<double>(activity.latency_ns) * 1e-9;
    if (activity.amount > 0) seconds += activity.amount / rates[activity.demand];
  }
  if (seconds <= most_seconds) return;
  throw InputError(
      fmt::format("{} steps of model {} are {:.3g} years of work on machine {}: longer than the {} "
                  "years that are simulated",
                  schedule.steps(), problem.model.name, seconds / (365.25 * 86400),
                  problem.machine.name, std::floor(most_seconds / (365.25 * 86400))),
      "look for a rate of the machine that is too low, or take a smaller batch or model");
}

CostedSchedule cost_tasks(const Schedule& schedule, const Problem& problem, std::size_t count) {
  const Costs costs(problem);
  CostedSchedule costed;
  ActivityGraph& graph = costed.graph;
  graph.resources = costs.resources();
  DemandsOfWorks demands(costs, graph);
  Extrapolation extrapolation(problem);
  graph.activities.reserve(count);
  for (const Task& task : schedule.tasks().first(count)) {
    const TaskCost cost = costs.of(task, schedule.groups());
    Activity activity;
    activity.lane = static_cast<std::uint32_t>(task.lane);
    activity.latency_ns = cost.latency_ns;
    activity.amount = cost.amount;
    if (cost.work != Work::nothing) activity.demand = demands.index_of(cost);
    extrapolation.add(task, cost, schedule.groups());
    graph.activities.push_back(activity);
  }
  costed.extrapolates = extrapolation.texts();
  if (count == schedule.tasks().size()) require_countable_time(schedule, problem, graph);
  for (std::size_t lane = 0; lane < lane_count_of(problem); ++lane) {
    graph.lanes.push_back({to_string(static_cast<Lane>(lane)), LaneOrder::index, 1});
  }
  copy_edges(schedule, count, graph);
  graph.describe = [schedule](std::uint32_t task) { return schedule.describe(task); };
  return costed;
}

}  // namespace

CostedSchedule cost_schedule(const Schedule& schedule) {
  return cost_schedule(schedule, schedule.problem());
}

CostedSchedule cost_schedule(const Schedule& schedule, const Problem& problem) {
  return cost_tasks(schedule, problem, schedule.tasks().size());
}

CostedSchedule cost_first_tasks(const Schedule& schedule, std::size_t count) {
  return cost_tasks(schedule, schedule.problem(), count);
}

}  // namespace spillway
