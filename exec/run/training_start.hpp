// What a training is before it takes memory or touches a drive: all that can be known of it, and
// refused, without leaving anything behind. Training begins with it; so does a training that is
// only asked what it would be.
#pragma once

#include <memory>
#include <optional>

#include "exec/run/training.hpp"

namespace spillway {

struct TrainingStart {
  std::int64_t first = 0;  // the step that it begins with
  std::unique_ptr<TrainingSchedules> schedules;
  std::shared_ptr<const Batches> batches;
  TrainingRecord record;                 // without what only the device knows
  std::optional<TrainingRecord> before;  // of the run that is resumed
  std::optional<FrozenOrigin> frozen;
  StoreBytes store_bytes;
  std::int64_t commit_interval = 0;  // steps, also where nothing is committed
};

// Throws as the constructor of Training does, where it needs neither memory nor a drive for that.
TrainingStart start_of(const TrainingOptions& options);

}  // namespace spillway
