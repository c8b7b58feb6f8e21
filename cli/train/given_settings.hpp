// The options of `train` as settings, and its config file: what a training is asked for.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/train/train_options.hpp"
#include "experiments/train/training_job.hpp"

namespace spillway::cli {

// Options hold above the file of --config, and what a resumed run keeps above what has not changed
// in that file since.
TrainRequest train_request(const CLI::App& command, const TrainOptions& options);

}  // namespace spillway::cli
