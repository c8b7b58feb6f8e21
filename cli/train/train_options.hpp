// What `spillway train` takes on the command line.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "cli/options/io_option.hpp"
#include "cli/options/problem_options.hpp"
#include "experiments/train/train_settings.hpp"

namespace spillway::cli {

struct TrainOptions {
  // Filled in by the parser, which checks them so; a training is given their texts
  // (given_settings.hpp), because a resumed run adds to these.
  ProblemOptions problem;
  TrainSettings settings;
  std::string run, trace, warmup, learning_rate_schedule, sample_memory;
  IoOption io;
  bool json = false, quiet = false;
  bool resume = false, overwrite = false, take_over = false, remove_store = false;
  bool retune_matmul = false;
  bool retune = false;
};

// Adds the options to the subcommand.
void add_train_options(CLI::App& command, TrainOptions& options);

}  // namespace spillway::cli
