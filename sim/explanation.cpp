#include "sim/explanation.hpp"

#include "base/errors.hpp"

namespace spillway {

namespace {

// `graph` as in find_critical_path.
Explanation explained(const Schedule& schedule, const SimulationResult& result,
                      const ActivityGraph* graph) {
  Explanation explanation;
  explanation.window = steady_window(result.step_ends_ns);
  const Causes causes(schedule, result.tasks, explanation.window.begin_ns);
  explanation.critical_path =
      find_critical_path(schedule, graph, result, causes, explanation.window);
  explanation.stalls = find_stalls(schedule, result, causes, explanation.window);
  return explanation;
}

}  // namespace

Explanation explain(const Schedule& schedule, const SimulationResult& result) {
  const CostedSchedule costed = cost_schedule(schedule);
  return explained(schedule, result, &costed.graph);
}

Explanation explain_recorded(const Schedule& schedule, std::vector<SimulatedTask> times) {
  SPILLWAY_ASSERT(times.size() == schedule.tasks().size());
  SimulationResult recorded;
  recorded.tasks = std::move(times);
  recorded.step_ends_ns = step_ends(schedule, recorded.tasks);
  return explained(schedule, recorded, nullptr);
}

}  // namespace spillway
