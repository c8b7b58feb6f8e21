// What the steady step is made of: the chain of tasks, each the cause of the next, that ends with
// the steady window, and how much of it is lost to sharing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/causes.hpp"
#include "sim/costed_schedule.hpp"
#include "sim/steady_state.hpp"
#include "sim/task_class.hpp"

namespace spillway {

struct CriticalPart {
  TaskClass of;
  std::int64_t ns = 0;  // of the steady window, > 0
  // Part of it that these tasks would not have taken alone, by the resource that held them to their
  // fair share; only resources that did.
  std::vector<std::pair<std::string, double>> lost_ns;
};

// "1.20 ms to sharing dram, 80 us to sharing ssd.total", of one of `steps` steps; what is below a
// thousandth of the part is left out.
std::string lost_text(const CriticalPart& part, int steps);

struct CriticalPath {
  std::vector<TaskId> tasks;        // in order of time; the window is covered without gaps
  std::vector<CriticalPart> parts;  // the longest first; their sum is the window
  // The longest chain of the tasks that start inside the window, each at its uncontended time,
  // linked by dependencies and by the order on their lanes. Sharing can only make the window
  // longer. 0: not known; of a stage of a pipeline, which waits for others, it says nothing.
  double chain_ns = 0;
};

// `causes` are those from window.begin_ns on. `graph` is what was simulated; null: the times were
// recorded, and neither lost_ns nor chain_ns is known.
CriticalPath find_critical_path(const Schedule& schedule, const ActivityGraph* graph,
                                const SimulationResult& result, const Causes& causes,
                                const SteadyWindow& window);

}  // namespace spillway
