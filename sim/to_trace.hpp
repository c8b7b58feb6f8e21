// A simulated schedule as a trace: the same record that the executor writes.
#pragma once

#include <vector>

#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"
#include "traces/trace.hpp"

namespace spillway {

// Lanes, kinds, phases and tiers are in the order of their enums. The memory counter of a tier is
// the bytes of its buffers that are live: persistent ones throughout, transient ones from the start
// of their first task to the end of their last. Metadata is left to the caller.
Trace to_trace(const Schedule& schedule, const SimulationResult& result);

// Its memory counters. Of `result` only the times of the tasks count: they may be recorded ones.
std::vector<MemorySample> memory_samples(const Schedule& schedule, const SimulationResult& result);

}  // namespace spillway
