// What `train` says at its start, after each step, and at its end: to programs and to people.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/train/train_options.hpp"
#include "exec/run/run_folder.hpp"
#include "exec/run/training.hpp"
#include "experiments/plan/train_plan.hpp"

namespace spillway::cli {

// The events `start` and `step` of metrics.jsonl (docs/train.md).
nlohmann::ordered_json start_event(const Training& training, const TrainPlan& plan,
                                   const TrainOptions& options, const std::filesystem::path& run);
nlohmann::ordered_json step_event(const StepResult& step, double tokens, const ModelSpec& model);

// The same for people, on standard output.
void announce(const Training& training, const TrainPlan& plan, const std::filesystem::path& run);
void announce_end(const Training& training, const TrainingResult& result, const RunFolder& run,
                  const std::filesystem::path& trace, bool exported, bool stopped);

}  // namespace spillway::cli
