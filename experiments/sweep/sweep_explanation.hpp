// What a sweep says of why a point is as fast as it is, as columns of its table.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// Sets "critical_path" and "stalls" of a point's JSON to what docs/sweep.md says of these columns:
// the three longest parts of each, as names and as shares of the step. `result` is
// simulate(schedule).
void add_explanation(nlohmann::ordered_json& json, const Schedule& schedule,
                     const SimulationResult& result);

// Takes both away: they were not asked for.
void leave_out_explanation(nlohmann::ordered_json& json);

}  // namespace spillway
