// The JSON object of `spillway simulate --json`; every key is explained in docs/metrics.md.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policies/schedule/fit_margin.hpp"
#include "sim/explanation.hpp"

namespace spillway {

// What the object says of a schedule apart from its times.
struct ScheduleSummary {
  const Problem& problem;
  std::string policy;
  int steps = 0;
  TierUses memory{};
  bool fits = false;
  std::uint64_t tasks = 0;
};
// `result` is null when the schedule was not simulated, which is so when it does not fit: then what
// only a simulation tells is null. So are critical_path and stalls without an explanation.
nlohmann::ordered_json to_json(const ScheduleSummary& schedule, const SimulationResult* result,
                               double schedule_seconds, double simulate_seconds,
                               const Explanation* explanation = nullptr);
nlohmann::ordered_json to_json(const Schedule& schedule, const SimulationResult* result,
                               double schedule_seconds, double simulate_seconds,
                               const Explanation* explanation = nullptr);
// Sets memory.TIER.margin, "tightest" and "shortfall".
void add_margins(nlohmann::ordered_json& json, const TierUses& memory);
// A class of tasks: its name for people, and what it is made of.
nlohmann::ordered_json class_json(const TaskClass& task_class);
// Its "workload".
nlohmann::ordered_json to_json(const Workload& workload);

}  // namespace spillway
