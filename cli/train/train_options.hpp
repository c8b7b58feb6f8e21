// What `spillway train` takes on the command line.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace spillway::cli {

// What the parser fills in; all settings (experiments/train/train_settings.hpp) are options, too,
// and read by given_settings.hpp.
struct TrainOptions {
  std::string config;
  bool json = false, quiet = false;
  bool resume = false, overwrite = false, take_over = false, retune_matmul = false;
  bool dry_run = false;
};

// Adds the options to the subcommand.
void add_train_options(CLI::App& command, TrainOptions& options);

}  // namespace spillway::cli
