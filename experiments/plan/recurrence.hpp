// Whether what a simulated schedule does repeats: from step to step, from layer to layer.
//
// A lane runs its tasks in program order, so all that the future depends on, at one moment, is
// where each lane is and for how long its task has run. Where all lanes are, relative to a moment,
// where they were relative to an earlier one, what is in between happens again, as long as the
// tasks and what they wait for are alike.
#pragma once

#include <optional>
#include <span>

#include "sim/engine.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// What a simulation has to reach to tell of `step`: its end, and the state in which the next one
// begins.
StopAt stop_after(const Schedule& schedule, int step);

// Step 1 of three, whose sum is the step time, and that of all steps that come after it. Nothing
// unless step 2 begins in the state of the lanes in which step 1 began, and has the same memory.
std::optional<PhaseSeconds> repeated_step(const Schedule& schedule,
                                          std::span<const ActivityTimes> times);

// From where on a schedule's steps are alike, up to the last but one: task t + per_step is task t a
// step later, and what waits for it is what waits for t a step later, for every t from `from` on.
struct Repetition {
  TaskId from = 0;
  TaskId per_step = 0;
  int step = 0;      // the first one that may begin as all later ones
  TaskId tasks = 0;  // how many there are of it, of those before it, and of the next one
  StopAt stop;       // stop_after(step)
};
// Nothing where they are not, or where there are fewer than four.
std::optional<Repetition> repetition_of(const Schedule& schedule);

// As repeated_step(), for `repetition.step`, of whose first `repetition.tasks` tasks the times are
// given. Whatever memory the steps use, what waits for what is known to be alike.
std::optional<PhaseSeconds> repeated_step(const Schedule& schedule,
                                          std::span<const ActivityTimes> times,
                                          const Repetition& repetition);

// By how much longer step 1 is with `period` more layers. Nothing where in one of its passes
// through the layers no state of the lanes comes again after so many layers. Where there is one
// pass forward and one backward, it is enough for the GPU to compute all the time, with no task
// later, relative to its layer, than that of a layer before: it would go on so.
std::optional<PhaseSeconds> growth_by_layers(const Schedule& schedule,
                                             std::span<const ActivityTimes> times, int period);

}  // namespace spillway
