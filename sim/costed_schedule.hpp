// A schedule as the event engine takes it: each task with what it costs on the machine
// (policies/cost/costs.hpp), in queues of their lanes.
#pragma once

#include <string>
#include <vector>

#include "policies/schedule/schedule.hpp"
#include "sim/engine.hpp"
#include "sim/simulate.hpp"

namespace spillway {

struct CostedSchedule {
  ActivityGraph graph;  // activity i is task i; lane l is Lane(l); refers to the schedule for names
  // What its tasks need beyond what the machine file knows (policies/cost/extrapolation.hpp).
  std::vector<std::string> extrapolates;
};

// Throws InputError where the schedule needs a rate the machine file does not give (e.g. ssd.read).
CostedSchedule cost_schedule(const Schedule& schedule);
// At the rates of `problem`, which is the schedule's but for its machine.
CostedSchedule cost_schedule(const Schedule& schedule, const Problem& problem);
// The first `count` tasks of it, however long they take.
CostedSchedule cost_first_tasks(const Schedule& schedule, std::size_t count);

// As simulate(schedule), with what its tasks cost.
SimulationResult simulate(const Schedule& schedule, const CostedSchedule& costed);

}  // namespace spillway
