// What a training says while it is prepared.
#pragma once

#include <chrono>
#include <optional>

#include "cli/text/progress.hpp"
#include "experiments/train/training_job.hpp"

namespace spillway::cli {

class Preparation {
 public:
  Preparation(bool quiet, bool json)
      : quiet_(quiet), checking_(!json && !quiet), reading_(!json && !quiet) {}

  // Lives as long as this.
  TrainListener listener();
  void end() { activity_.reset(); }

 private:
  bool quiet_;
  Progress checking_, reading_;
  std::optional<std::chrono::steady_clock::time_point> reading_since_;
  std::optional<Activity> activity_;
};

}  // namespace spillway::cli
