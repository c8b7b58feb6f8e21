// The events of metrics.jsonl (docs/train.md), as JSON: what a training says of itself at its
// start, after each step, and in between.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/train/training_job.hpp"
#include "experiments/watch/gpu_meter.hpp"

namespace spillway {

// The first files of the text, and how many more there are: a resumed run takes them from its
// folder, which may come from somebody else.
std::vector<std::string> shown_data(const DataSummary& data);
// How documents were packed: what of them, and how well.
nlohmann::ordered_json packing_json(const DataSummary& data);
// Files, bytes, and what was skipped with the first few reasons.
nlohmann::ordered_json data_json(const DataSummary& data);

// The event `start`, without what only the program knows.
nlohmann::ordered_json start_event(const TrainingJob& job);
// The event `step`. `gpu`: what it draws at the moment; empty: not known.
nlohmann::ordered_json step_event(const StepResult& step, const TrainingJob& job,
                                  const GpuReading& gpu);
// The events of these names.
nlohmann::ordered_json evaluation_event(const EvaluationResult& result);
nlohmann::ordered_json best_event(const Best& best, const std::filesystem::path& folder);
nlohmann::ordered_json sample_event(std::int64_t step, const TrainingSample& sample);
nlohmann::ordered_json spike_event(const LossSpike& spike);
// The event `checkpoint`.
nlohmann::ordered_json kept_event(const KeptStep& kept);
// What the first steps say of the prediction.
nlohmann::ordered_json prediction_json(const PredictionCheck& check);

}  // namespace spillway
