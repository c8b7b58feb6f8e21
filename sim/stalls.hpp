// What the GPU waited for whenever it was idle.
//
// Every nanosecond of the steady window in which lane gpu.compute runs nothing is charged to the
// task that was running at that moment on the chain which held up the next GPU task
// (sim/causes.hpp): the last predecessor of the GPU task, its own last predecessor before that, and
// so on. Where no GPU task follows, the chain is the one that ends with the last task of the
// window. The sum over all stalls is therefore exactly the idle time.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/causes.hpp"
#include "sim/steady_state.hpp"
#include "sim/task_class.hpp"

namespace spillway {

struct Stall {
  TaskClass running;       // what was running while the GPU waited
  Wait wait = Wait::data;  // why the chain had to wait for it
  std::int64_t ns = 0;     // of the whole steady window, > 0
};

struct StallReport {
  std::int64_t busy_ns = 0;   // gpu.compute, in the steady window
  std::int64_t idle_ns = 0;   // busy_ns + idle_ns is the window
  std::vector<Stall> stalls;  // the longest first; their sum is idle_ns
};

// `causes` are those from window.begin_ns on.
StallReport find_stalls(const Schedule& schedule, const SimulationResult& result,
                        const Causes& causes, const SteadyWindow& window);

}  // namespace spillway
