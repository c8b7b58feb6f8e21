// What one step costs once the pipeline is full: the step time and its parts, from the times of the
// tasks.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "sim/costed_schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// The steps that stand for the steady state: the last half, but for the very last step, which has
// no next step to prefetch for (with fewer than four steps: the last half).
struct SteadyWindow {
  int first_step = 0;  // first step that counts
  int steps = 1;       // how many count, at least 1
  std::int64_t begin_ns = 0, end_ns = 0;

  bool counts(const Task& task) const {
    return task.step >= first_step && task.step < first_step + steps &&
           task.phase != Phase::epilogue;
  }
  double seconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-9; }
};

// The window of a simulated schedule whose steps end at these times.
SteadyWindow steady_window(const std::vector<std::int64_t>& step_ends_ns);

// When the last task of each step ends, the epilogue apart; 0 for a step without any.
std::vector<std::int64_t> step_ends(const Schedule& schedule, std::span<const SimulatedTask> times);

// The task with which the window ends (the first in program order, where several end then).
TaskId last_task(const Schedule& schedule, const SimulationResult& result,
                 const SteadyWindow& window);

// Fills everything of `result` but tasks and extrapolates, which must be there.
void measure_steady_state(const Schedule& schedule, const ActivityGraph& graph,
                          SimulationResult& result);

// What some tasks take of lanes and resources when nothing slows them, and what they move and
// compute.
struct TaskWork {
  std::array<LaneUse, lane_count> lanes;  // by Lane; without busy_fraction
  std::vector<ResourceUse> resources;
  double flops = 0;
};
TaskWork work_of(const Schedule& schedule, const ActivityGraph& graph,
                 const std::function<bool(const Task&)>& counts);

// Parts of measure_steady_state: the bound and what sets it, from the demands of lanes and
// resources (a lane serves one task at a time, so it is a resource of its own); then what follows
// from the step time and the bound.
void find_bound(SimulationResult& result);
void set_rates(const Problem& problem, SimulationResult& result);

}  // namespace spillway
