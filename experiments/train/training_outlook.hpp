// What a training comes to, before it starts: what `train --dry-run` shows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exec/run/training_start.hpp"
#include "experiments/plan/wear.hpp"
#include "experiments/train/train_plan.hpp"
#include "policies/schedule/memory_parts.hpp"

namespace spillway {

// Of a tier: of all the schedules of the training the one that needs most of it.
struct TierOutlook {
  Tier tier = Tier::gpu;
  std::uint64_t peak = 0, limit = 0;
  std::uint64_t set_aside = 0;  // beside the limit: workspaces of a GPU, what works beside it
  bool of_evaluation = false;
  std::vector<MemoryPart> parts;
};

struct TrainingOutlook {
  TrainingStart start;
  Wear wear;
  std::vector<TierOutlook> memory;  // by tier
  struct Output {
    std::filesystem::path path;  // in the run's folder
    std::uint64_t bytes = 0;     // at most
    std::string what;
  };
  std::vector<Output> outputs;  // weights, but no small files

  std::int64_t steps_left() const { return *wear.steps; }
};

// Builds the schedules. Throws FitError, InputError; MachineError where the training is to run
// `here` and the drives have no room for a store made anew.
TrainingOutlook outlook_of(const TrainingOptions& options, const TrainPlan& plan, bool here);

}  // namespace spillway
