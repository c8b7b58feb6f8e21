#include "policies/cost/least_time.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "policies/cost/costs.hpp"

namespace spillway {

double least_seconds(const Schedule& schedule) {
  const Costs costs(schedule.problem());
  std::array<std::optional<Demand>, work_count> demands;
  std::array<double, lane_count> lane_free{};
  std::vector<double> ready(schedule.tasks().size(), 0), asked(costs.resources().size(), 0);
  double least = 0;
  for (TaskId id = 0; id < ready.size(); ++id) {
    const Task& task = schedule.tasks()[id];
    if (schedule.steps() > 2 && (task.step == 0 || task.step == schedule.steps())) continue;
    const TaskCost cost = costs.of(task, schedule.groups());
    double seconds = static_cast<double>(cost.latency_ns) * 1e-9;
    if (cost.amount > 0) {
      std::optional<Demand>& demand = demands[static_cast<std::size_t>(cost.work)];
      if (cost.work == Work::collective) {
        demand = costs.collective_demand(cost.variant);
      } else if (!demand) {
        demand = costs.demand(cost.work);
      }
      seconds += cost.amount / full_rate(costs.resources(), *demand);
      for (const Usage& usage : demand->usages)
        asked[usage.resource] += cost.amount * usage.per_unit;
    }
    double& free = lane_free[static_cast<std::size_t>(task.lane)];
    free = std::max(ready[id], free) + seconds;
    least = std::max(least, free);
    for (const TaskId successor : schedule.successors(id))
      ready[successor] = std::max(ready[successor], free);
  }
  for (std::size_t r = 0; r < asked.size(); ++r)
    least = std::max(least, asked[r] / costs.resources()[r].capacity);
  return least;
}

}  // namespace spillway
