// What `train` refuses before anything is planned, allocated or written.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/options/run_options.hpp"
#include "exec/run/executor.hpp"
#include "exec/run/training.hpp"
#include "policies/workload/problem.hpp"

namespace spillway::cli {

// Throws InputError for a setting no training can use.
void check_optimizer(const OptimizerSettings& settings);

// The directories of `--ssd DIR[,DIR]`; empty when the option was not given. Throws InputError when
// one is missing.
std::vector<std::filesystem::path> ssd_directories(const std::string& option);

// Throws InputError for what the backend (that of the CPU, or CUDA's) cannot train.
void check_backend(const Problem& problem, bool cuda);

// The kernels of attention that CUDA trains with: a resumed training goes on with those it has.
// Where the environment asks for others, these, and resuming is refused later. Throws InputError.
std::string attention_to_train_with(const std::optional<ResumePoint>& point);

// The weights are written at the end; that there is no room for them must not show after hours of
// training. Throws MachineError.
void require_room(const ModelSpec& model, const std::filesystem::path& folder);

}  // namespace spillway::cli
