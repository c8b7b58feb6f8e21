// A recorded trace held against the simulator: the same schedule, predicted and measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/calibrate/drift.hpp"
#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"
#include "sim/step_interval.hpp"
#include "traces/compare.hpp"

namespace spillway {

// Time on the longest chain of tasks each of which waits for the one before it, by task kind, in
// seconds per steady step; largest first.
struct CriticalShare {
  std::string kind;
  double predicted_seconds = 0;
  double measured_seconds = 0;
};

// The prediction for the machine as it was during the run, by the reference kernels that were timed
// before and after it.
struct DriftCorrection {
  Drift drift;                                 // of the machine since it was calibrated
  std::map<std::string, std::size_t> samples;  // by kind of reference
  double predicted_seconds =
      0;             // of the median step, with every rate corrected by its own reference
  double error = 0;  // predicted / measured - 1
};

struct Validation {
  Schedule schedule;
  SimulationResult predicted;
  TraceComparison comparison;
  std::vector<CriticalShare> critical_path;
  // Nothing: the run recorded no references, the machine file has none, or the run was throttled.
  std::optional<DriftCorrection> corrected;
  // Around the corrected prediction where there is one; nothing: the machine file has no spreads.
  std::optional<StepUncertainty> uncertainty;

  // Seconds that the interval is about.
  double expected_seconds() const {
    return corrected ? corrected->predicted_seconds : comparison.predicted.median_seconds;
  }
};

// Writes the times of the reference kernels, before and after a run, into the trace's metadata.
void record_references(Trace& trace, const std::vector<KernelTime>& before,
                       const std::vector<KernelTime>& after);
// As recorded, before and after together; empty: none were. Throws InputError for damaged ones.
std::vector<KernelTime> recorded_references(const Trace& trace);

// Simulates the schedule of `measured` on the machine its metadata names or, if given, with the
// rates of `machine`, some of them `set_by_hand` (memory limits stay as recorded, and so does the
// throttle of the run). Throws InputError for a trace that was not written by a run.
Validation validate_trace(const Trace& measured, const std::string& origin,
                          const std::optional<Machine>& machine = {},
                          const std::vector<std::string>& set_by_hand = {});

}  // namespace spillway
