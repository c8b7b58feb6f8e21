// What a training refuses before anything is planned, allocated or written.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exec/run/training.hpp"
#include "experiments/train/train_settings.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Throws InputError for a setting no training can use.
void check_settings(const TrainSettings& settings);

// Throws InputError for one of the settings given now that would do nothing: `keep_every` where no
// checkpoint is kept, `frozen_weights` where nothing of the model is frozen.
void refuse_idle_settings(const GivenSettings& given, const TrainSettings& settings,
                          const ModelSpec& model);

// Of paths separated by commas; empty where there are none. Throws InputError when
// one is missing.
std::vector<std::filesystem::path> ssd_directories(const std::string& text);

// Throws InputError for what the backend (that of the CPU, or CUDA's) cannot train.
void check_backend(const Problem& problem, bool cuda);

// The kernels of attention that CUDA trains with: a resumed training goes on with those it has.
// Where the environment asks for others, these, and resuming is refused later. Throws InputError.
std::string attention_to_train_with(const std::optional<ResumePoint>& point);

// Weights are written into the run's folder, at the end and as checkpoints; that there is no room
// for them must not show after hours of training. Throws MachineError.
void require_room(const ModelSpec& model, const std::filesystem::path& folder,
                  const TrainSettings& settings);

}  // namespace spillway
