// A schedule as the event engine takes it: each task with what it costs on the machine
// (policies/cost/costs.hpp), in queues of their lanes.
#pragma once

#include "policies/schedule/schedule.hpp"
#include "sim/engine.hpp"

namespace spillway {

struct CostedSchedule {
  ActivityGraph graph;  // activity i is task i; lane l is Lane(l); refers to the schedule for names
  bool extrapolated = false;  // some compute time was not measured at its shape
};

// Throws InputError where the schedule needs a rate the machine file does not give (e.g. ssd.read).
CostedSchedule cost_schedule(const Schedule& schedule);
// At the rates of `problem`, which is the schedule's but for its machine.
CostedSchedule cost_schedule(const Schedule& schedule, const Problem& problem);

}  // namespace spillway
