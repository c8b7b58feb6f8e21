// A simulated schedule as a trace: the same record that the executor writes.
#pragma once

#include <span>
#include <vector>

#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"
#include "traces/trace.hpp"

namespace spillway {

// Lanes, kinds, phases and tiers are in the order of their enums. The memory counter of a tier is
// the bytes of its buffers that are live: persistent ones throughout, transient ones from the start
// of their first task to the end of their last. Metadata is left to the caller.
Trace to_trace(const Schedule& schedule, const SimulationResult& result);

// The memory counters of tasks that ran at these times (by task id), in order of time.
std::vector<MemorySample> memory_samples(const Schedule& schedule,
                                         std::span<const SimulatedTask> times);

}  // namespace spillway
