// The JSON object of `spillway simulate --json`; every key is explained in docs/metrics.md.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "policies/schedule/schedule.hpp"
#include "sim/explanation.hpp"

namespace spillway {

// `result` is null when the schedule was not simulated, which is so when it does not fit: then what
// only a simulation tells is null. So are critical_path and stalls without an explanation.
nlohmann::ordered_json to_json(const Schedule& schedule, const SimulationResult* result,
                               double schedule_seconds, double simulate_seconds,
                               const Explanation* explanation = nullptr);
// Its "workload".
nlohmann::ordered_json to_json(const Workload& workload);

}  // namespace spillway
