// A recorded trace held against the simulator: the same schedule, predicted and measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"
#include "traces/compare.hpp"

namespace spillway {

// Time on the critical path, by task kind, in seconds per step; largest first.
struct CriticalShare {
  std::string kind;
  double predicted_seconds = 0;
  double measured_seconds = 0;
};

struct Validation {
  Schedule schedule;
  SimulationResult predicted;
  TraceComparison comparison;
  std::vector<CriticalShare> critical_path;
};

// Simulates the schedule of `measured` on the machine its metadata names or, if given, with the
// rates of `machine`, some of them `set_by_hand` (memory limits stay as recorded, and so does the
// throttle of the run). Throws InputError for a trace that was not written by a run.
Validation validate_trace(const Trace& measured, const std::string& origin,
                          const std::optional<Machine>& machine = {},
                          const std::vector<std::string>& set_by_hand = {});

}  // namespace spillway
