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

}  // namespace spillway
