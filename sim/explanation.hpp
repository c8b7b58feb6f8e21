// Why a simulated step takes as long as it does: its critical path, and what the GPU waited for.
//
// For the schedules a user looks at; a search over many leaves it out.
#pragma once

#include "sim/critical_path.hpp"
#include "sim/stalls.hpp"

namespace spillway {

struct Explanation {
  SteadyWindow window;  // what both are about; divide by window.steps for one step
  CriticalPath critical_path;
  StallReport stalls;
};

// `result` is simulate(schedule). Takes a fraction of the time of simulate(): every task and every
// edge is looked at a fixed number of times.
Explanation explain(const Schedule& schedule, const SimulationResult& result);

// The same of times that were recorded, by task id, since the schedule was started. The time from
// the end of what a task waited for to its own start (a kernel launch, a thread that wakes) is
// charged to what it waited for. What is lost to sharing is not known.
Explanation explain_recorded(const Schedule& schedule, std::vector<SimulatedTask> times);

}  // namespace spillway
