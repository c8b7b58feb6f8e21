// The JSON object of `spillway simulate --json`; every key is explained in docs/metrics.md.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "policies/schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// `result` is null when the schedule was not simulated, which is so when it does not fit: then what
// only a simulation tells is null.
nlohmann::ordered_json to_json(const Schedule& schedule, const SimulationResult* result,
                               double schedule_seconds, double simulate_seconds);

}  // namespace spillway
