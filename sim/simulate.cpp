#include "sim/simulate.hpp"

#include "base/errors.hpp"
#include "sim/costed_schedule.hpp"
#include "sim/steady_state.hpp"

namespace spillway {

SimulationResult simulate(const Schedule& schedule) {
  if (schedule.tasks().empty() || schedule.steps() < 1)
    throw InputError("the schedule has no steps to simulate");
  const CostedSchedule costed = cost_schedule(schedule);
  SimulationResult result;
  result.extrapolated = costed.extrapolated;
  const std::vector<ActivityTimes> times = simulate_activities(costed.graph);
  result.tasks.reserve(times.size());
  for (const ActivityTimes& t : times) result.tasks.push_back({t.start_ns, t.end_ns});
  measure_steady_state(schedule, costed.graph, result);
  return result;
}

}  // namespace spillway
