// What `train` says at its start, after each step, and at its end: to programs and to people.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "experiments/train/training_job.hpp"

namespace spillway::cli {

// The events `start` and `step` of metrics.jsonl (docs/train.md).
nlohmann::ordered_json start_event(const TrainingJob& job);
nlohmann::ordered_json step_event(const StepResult& step, double tokens, const ModelSpec& model);

// The same for people, on standard output.
void announce(const Training& training, const TrainPlan& plan, const std::filesystem::path& run);
void announce_end(const Training& training, const TrainingResult& result, const RunFolder& run,
                  const std::filesystem::path& trace, bool exported, bool stopped);

}  // namespace spillway::cli
