// What `train` says at its start, after each step, and at its end: to programs and to people.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "experiments/train/training_job.hpp"
#include "experiments/watch/gpu_meter.hpp"

namespace spillway::cli {

// The events `start` and `step` of metrics.jsonl (docs/train.md).
nlohmann::ordered_json start_event(const TrainingJob& job);
nlohmann::ordered_json step_event(const StepResult& step, const TrainingJob& job,
                                  const GpuReading& gpu);
// The event `evaluation`.
nlohmann::ordered_json evaluation_event(const EvaluationResult& result);
std::string evaluation_text(const EvaluationResult& result);  // the same for people
// The events `best`, `sample` and `spike`; and for people what is said of the last two.
nlohmann::ordered_json best_event(const Best& best, const std::filesystem::path& folder);
nlohmann::ordered_json sample_event(std::int64_t step, const TrainingSample& sample);
std::string sample_text(std::int64_t step, const TrainingSample& sample);
nlohmann::ordered_json spike_event(const LossSpike& spike);
std::string spike_text(const LossSpike& spike);
// At the end: which evaluation was the best, where its weights are, whether it has ended early;
// empty where nobody asked.
std::string best_text(const TrainingJob& job);
// The event `checkpoint`.
nlohmann::ordered_json kept_event(const KeptStep& kept);

// What the first steps say of the prediction (docs/train.md), and the same for people: what to do
// where it does not hold. `measured`: the rates are those of a brief measurement.
nlohmann::ordered_json prediction_json(const PredictionCheck& check);
std::string prediction_text(const PredictionCheck& check, bool measured);

// The same for people, on standard output.
void announce(const TrainingJob& job);
// `table`: what closes it (train_summary.hpp).
void announce_end(const Training& training, const TrainingResult& result, const RunFolder& run,
                  const std::filesystem::path& trace, const std::filesystem::path& weights,
                  const std::string& table, bool stopped, bool ended_early);

}  // namespace spillway::cli
