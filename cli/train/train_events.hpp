// What `train` says to people at its start, on the way, and at its end. To programs it says the
// events of experiments/watch/training_events.hpp.
#pragma once

#include <filesystem>
#include <string>

#include "experiments/train/training_job.hpp"
#include "experiments/watch/training_events.hpp"

namespace spillway::cli {

std::string evaluation_text(const EvaluationResult& result);
std::string sample_text(std::int64_t step, const TrainingSample& sample);
std::string spike_text(const LossSpike& spike);
// At the end: which evaluation was the best, where its weights are, whether it has ended early;
// empty where nobody asked.
std::string best_text(const TrainingJob& job);

// What the first steps say of the prediction (docs/train.md), and what to do where it does not
// hold. `measured`: the rates are those of a brief measurement.
std::string prediction_text(const PredictionCheck& check, bool measured);

// On standard output.
void announce(const TrainingJob& job);
// `table`: what closes it (train_summary.hpp).
void announce_end(const Training& training, const TrainingResult& result, const RunFolder& run,
                  const std::filesystem::path& trace, const std::filesystem::path& weights,
                  const std::string& table, bool stopped, bool ended_early);

}  // namespace spillway::cli
