// The options of `train` as settings, and its config file: what a training is asked for.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/train/train_options.hpp"
#include "experiments/train/training_job.hpp"

namespace spillway::cli {

// Options hold above the file of --config, and what a resumed run keeps above what has not changed
// in that file since.
// `of_file` is given the settings of that file above which nothing holds.
TrainRequest train_request(const CLI::App& command, const TrainOptions& options,
                           GivenSettings& of_file);

// A message that names settings, with those that the file gave as they are in it: "steps = 0 (in
// FILE)".
Message as_given(const Message& message, const GivenSettings& of_file, const std::string& file);

}  // namespace spillway::cli
