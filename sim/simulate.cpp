#include "sim/simulate.hpp"

#include "base/errors.hpp"
#include "sim/costed_schedule.hpp"
#include "sim/steady_state.hpp"

namespace spillway {

namespace {

SimulationResult simulate_at(const Schedule& schedule, const Problem& problem) {
  if (schedule.tasks().empty() || schedule.steps() < 1)
    throw InputError("the schedule has no steps to simulate");
  return simulate(schedule, cost_schedule(schedule, problem));
}

}  // namespace

SimulationResult simulate(const Schedule& schedule, const CostedSchedule& costed) {
  SimulationResult result;
  result.extrapolates = costed.extrapolates;
  const std::vector<ActivityTimes> times = simulate_activities(costed.graph);
  result.tasks.reserve(times.size());
  for (const ActivityTimes& t : times) result.tasks.push_back({t.start_ns, t.end_ns});
  measure_steady_state(schedule, costed.graph, result);
  return result;
}

SimulationResult simulate(const Schedule& schedule) {
  return simulate_at(schedule, schedule.problem());
}

SimulationResult simulate(const Schedule& schedule, const Machine& machine) {
  Problem problem = schedule.problem();
  problem.machine = machine;
  return simulate_at(schedule, problem);
}

}  // namespace spillway
