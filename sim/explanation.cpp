#include "sim/explanation.hpp"

namespace spillway {

Explanation explain(const Schedule& schedule, const SimulationResult& result) {
  const CostedSchedule costed = cost_schedule(schedule);
  Explanation explanation;
  explanation.window = steady_window(result.step_ends_ns);
  const Causes causes(schedule, result.tasks, explanation.window.begin_ns);
  explanation.critical_path =
      find_critical_path(schedule, costed.graph, result, causes, explanation.window);
  explanation.stalls = find_stalls(schedule, result, causes, explanation.window);
  return explanation;
}

}  // namespace spillway
