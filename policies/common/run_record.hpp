// What a trace says of the run it is from, so that its schedule can be built again and simulated.
#pragma once

#include <string>

#include "policies/schedule/schedule.hpp"
#include "traces/trace.hpp"

namespace spillway {

// A trace without spans: names of lanes, kinds, phases and tiers, and the metadata model, machine
// (if its rates are known), limits, workload, policy, policy_origin (if it is not built in),
// framework, framework_hash, steps, fingerprint, version and source ("simulator" or "executor").
Trace make_trace(const Schedule& schedule, const std::string& source);

// The schedule a trace was recorded from, built anew. Throws InputError when the metadata is
// missing, or when the schedule is another one than was recorded (an older version of the program).
Schedule rebuild_schedule(const Trace& trace, const std::string& origin);

}  // namespace spillway
