// The table that a training closes with.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/watch/drive_health.hpp"
#include "experiments/watch/run_history.hpp"

namespace spillway {

// What the events of the run do not tell.
struct TrainingUse {
  struct Memory {
    std::string tier;
    double used_bytes = 0, planned_bytes = 0;
  };
  std::vector<Memory> memory;
  double bytes_written = 0;  // to the store, all in all, by this start of the run
  double rated_bytes = 0;    // that the drives may be written; 0: not known
  DrivesHealth before, after;
};

// Lines for people: steps, losses, time, speed, step time beside the predicted one, memory, bytes
// read and written, wear of the drives. Of the whole run where its metrics tell of all its starts.
// Empty where no step was made.
std::string closing_table(const RunHistory& history, const TrainingUse& use);

}  // namespace spillway
