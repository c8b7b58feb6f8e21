// What a training starts from: the weights of a model's folder, or values drawn from the seed.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "exec/data/checkpoint.hpp"
#include "exec/store/training_store.hpp"
#include "experiments/train/train_settings.hpp"

namespace spillway {

struct InitialWeights {
  // The model's, where it is in one: its configuration and tokenizer go with the run.
  std::optional<std::filesystem::path> folder;
  std::shared_ptr<Checkpoint> values;   // null: drawn from the seed, or those of a commit
  std::shared_ptr<Checkpoint> adapter;  // of its adapters; null as well
};

// `point`: what the training goes on from, if anything; of a commit what is frozen is needed still,
// from where it was or from `frozen_from`, a model's folder or name. Throws InputError where the
// folder has no weights, or others than the model's.
InitialWeights open_initial_weights(const TrainSettings& settings,
                                    const std::optional<ResumePoint>& point, const ModelSpec& model,
                                    const RingFactory& make_ring,
                                    const std::string& frozen_from = "");

// What goes with the weights of a run into its folder: config.json or adapter_config.json, and the
// tokenizer that it is trained with.
void write_files_of_run(const InitialWeights& weights, const TrainSettings& settings,
                        const ModelSpec& model, const std::filesystem::path& base,
                        const Directory& to);

}  // namespace spillway
