// Two traces of one schedule side by side: what was predicted, and what happened.
//
// Tasks are matched by id. A trace may hold several segments, runs of the same schedule one after
// the other; whatever is measured once per segment enters as its median over the segments. The same
// definitions apply to both traces. Errors are relative to the measurement and keep their sign:
//   error = predicted / measured - 1,     positive: the prediction is too slow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/trace.hpp"

namespace spillway {

// Steps of one trace in steady state.
//
// In a segment, D_k is the end of its last span with the segment's k-th step; spans of the phase
// "epilogue" (what finishes the last step before a save) are left out everywhere below. A segment's
// first step fills the pipeline, so the steady steps are the others: D_k - D_(k-1), k >= 1. Where
// no segment has two steps, the only step counts, from the start of the segment's first span:
// `filling`.
struct StepTimes {
  std::vector<double> seconds;  // of every steady step, segment by segment
  double median_seconds = 0;
  bool filling = false;  // no steady step was recorded: a first step stands in
};

// Throws InputError where the trace has no spans but those of the epilogue.
StepTimes step_times(const Trace& trace);

// Seconds of lane or kind time per steady step.
struct Quantity {
  std::string name;
  std::size_t predicted_count = 0, measured_count = 0;  // spans per steady step, rounded
  double predicted_seconds = 0, measured_seconds = 0;
  double error = 0;  // 0 where both are 0, infinite where only the measurement is
};

struct LaneQuantity : Quantity {
  double predicted_busy = 0, measured_busy = 0;  // fraction of the step that the lane is busy
};

struct Divergence {
  std::uint32_t task = 0;
  std::string description;                         // "forward L3 m1 step 0 on gpu.compute"
  std::int64_t predicted_ns = 0, measured_ns = 0;  // medians over segments
};

struct TraceComparison {
  StepTimes predicted, measured;
  double error = 0;                 // of the median step
  std::vector<Quantity> kinds;      // most measured seconds first
  std::vector<LaneQuantity> lanes;  // busiest measured lane first
  // The first task in program order whose durations differ by more than the thresholds.
  std::optional<Divergence> first_divergence;
  std::size_t diverging_tasks = 0;
  std::size_t matched_tasks = 0, predicted_only_tasks = 0, measured_only_tasks = 0;
};

// Two durations diverge where they differ by more than both of these.
struct DivergenceThreshold {
  double relative = 0.25;  // of the measured duration
  std::int64_t absolute_ns = 200'000;
};

// Throws InputError where a trace is empty, or where a task id is not the same work in both
// (another kind, lane, layer or micro-batch): then the traces are not of the same schedule.
TraceComparison compare_traces(const Trace& predicted, const Trace& measured,
                               DivergenceThreshold threshold = {});

}  // namespace spillway
