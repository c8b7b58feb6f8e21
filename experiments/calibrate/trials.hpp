// Short trainings at the end of a calibration: how far predictions are off on this computer.
//
// Kernels are timed alone, and a step is more than its kernels: operands that the task before left
// in a cache, lanes that slow each other down. A trial trains a policy for a few steps and keeps
// what its step took beside what the machine file had predicted; the errors widen the interval
// around predictions (sim/step_interval.hpp). No rate is changed by them. How fast the machine was
// during a trial is not the prediction's error: it is for the machine as references around the
// trial say (drift.hpp).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "experiments/calibrate/calibrate.hpp"
#include "experiments/calibrate/reference_kernels.hpp"

namespace spillway {

// Of each of six policies four, one round of all of them after the other: of n trials that were
// independent of each other the width of an interval would be known to 1 / sqrt(2 n), a seventh.
inline constexpr int trial_rounds = 4, most_trials = trial_rounds * 6;

// On the CPU backend, two micro-batches a step, of the largest size that was measured and takes
// half a second at most: policies that rest in memory, and with `options.ssd` those that use
// drives. Left out are trials that do not fit, those whose step would take long, and with a note
// those that fail. `next` is told what comes, most_trials times.
std::vector<TrialTime> run_trials(const CalibrationOptions& options, const Machine& machine,
                                  ReferenceKernels& references,
                                  const std::function<void(const std::string&)>& next,
                                  const CalibrationNote& note);

}  // namespace spillway
