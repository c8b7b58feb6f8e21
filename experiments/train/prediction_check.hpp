// The first steps of a training held against the prediction: whether the machine still is what its
// file, or what was measured before, says.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "policies/schedule/schedule.hpp"
#include "traces/trace.hpp"

namespace spillway {

// Steps that take longer or shorter than predicted by more than this share of the prediction.
inline constexpr double prediction_tolerance = 0.25;
inline constexpr std::size_t fewest_steps_checked = 4;

struct PredictionCheck {
  struct LaneTime {  // of its work in a step
    std::string lane;
    double predicted_seconds = 0, measured_seconds = 0;
    double alone_seconds = 0;  // predicted, if no task of another lane slowed its tasks
  };
  std::size_t steps = 0;                               // steady steps that were measured
  double predicted_seconds = 0, measured_seconds = 0;  // of the median step
  // The lane whose work takes a time, in a step, that is farthest from the predicted one; empty:
  // not known yet.
  std::string lane;
  double lane_predicted_seconds = 0, lane_measured_seconds = 0;
  std::string key;  // of a machine file: the rate of that lane's work
  std::vector<LaneTime> lanes;

  double error() const { return measured_seconds / predicted_seconds - 1; }
  bool holds() const;
};

// By the seconds of the first steps alone, which are not empty.
PredictionCheck check_steps(std::vector<double> seconds, double predicted);

// The machine with its rates corrected by what lanes were predicted to take and took.
Machine corrected_machine(Machine machine, const PredictionCheck& check);

// `measured` is a record of `schedule` on this machine, which schedule.problem() describes.
// Nothing: fewer than fewest_steps_checked steady steps are in it.
std::optional<PredictionCheck> check_prediction(const Schedule& schedule, const Trace& measured);

}  // namespace spillway
