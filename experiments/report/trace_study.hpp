// One trace and all that can be told of it: its schedule built again, what was predicted, what the
// GPU waited for, what memory held.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/message.hpp"
#include "experiments/questions/assumptions.hpp"
#include "experiments/validate/validate.hpp"
#include "sim/explanation.hpp"
#include "traces/trace.hpp"

namespace spillway {

struct StudyRequest {
  std::optional<Machine> machine;              // rates to predict with; nothing: those of the trace
  std::vector<std::string> set_by_hand;        // of `machine`
  WriteSetting write_setting = plain_setting;  // for notes
};

// One step as the trace has it.
struct TracedStep {
  std::int32_t segment = 0, step = 0;
  std::int64_t begin_ns = 0,
               end_ns = 0;  // from the end of the step before, or of its segment's start
};

struct TraceStudy {
  std::string name;  // for people: that of its file
  // Where it has no memory samples (those that training records have none), memory is what the
  // schedule keeps between the recorded times of its tasks.
  Trace trace;
  bool recorded = false;                 // by a training; else it says it was simulated, or nothing
  std::optional<Schedule> schedule;      // nothing: a note says why
  std::optional<Validation> validation;  // nothing: a note says why
  std::optional<Explanation> predicted_why;
  // How far the predicted step rests on what the machine file assumes; of a schedule of many tasks
  // it is not looked for.
  std::optional<AssumptionEffects> effects;
  // Of one whole run of the schedule, the last one recorded. Its times count from begin_ns.
  struct Run {
    std::int32_t segment = 0;
    std::int64_t begin_ns = 0;
    Explanation why;
  };
  std::optional<Run> run;
  std::vector<TracedStep> steps;  // in order of time
  // What "in a step" means below: the steady steps of `run`; without a schedule all steps but the
  // first.
  std::int64_t begin_ns = 0, end_ns = 0;
  int steps_in_window = 1;
  std::set<std::pair<std::int32_t, std::int32_t>> window;  // its steps: segment, step
  std::vector<std::string> notes;

  // Whether a task is part of the steps in the window, whenever it ran; of a trace without steps
  // every one.
  bool counts(const Span& span) const {
    return window.empty() || window.contains({span.segment, span.step});
  }
  double window_seconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-9; }
  // Nothing: there is no step that is not cut off.
  std::optional<double> step_seconds() const;
};

// `trace` was read from `origin`. Throws InputError where it holds no task at all, or times that no
// training has.
TraceStudy study_trace(Trace trace, const std::string& origin, const std::string& name,
                       const StudyRequest& request);

// Whether there is a prediction that the trace is not itself.
bool is_held_against_prediction(const TraceStudy& study);

}  // namespace spillway
