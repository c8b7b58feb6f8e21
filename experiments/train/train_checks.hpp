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

// Of each set of drives the paths, separated by commas; empty where there are none. Throws
// InputError when a directory or a set before another one is missing.
using SsdTexts = std::array<std::string, most_drive_sets>;
DriveFolders ssd_directories(const SsdTexts& texts);
// Leaves to a machine that is known the sets of drives that are named, or the first where none are.
// Throws InputError where it does not know as many. `note` may be empty.
void take_drive_sets(Machine& machine, const DriveFolders& drives,
                     const std::function<void(const Message&)>& note);
// The texts that say so, and all of them for people.
SsdTexts ssd_texts(const DriveFolders& drives);
Message ssd_settings(const DriveFolders& drives);

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
