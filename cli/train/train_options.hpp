// What `spillway train` takes on the command line.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/options/io_option.hpp"
#include "cli/options/problem_options.hpp"
#include "exec/run/executor.hpp"

namespace spillway::cli {

struct TrainOptions {
  ProblemOptions problem;
  std::string policy = "auto";
  std::vector<std::string> data;
  std::string ssd, run, trace, device = "auto", durability, throttle;
  std::optional<int> gpu;
  std::int64_t steps = 100;
  std::uint64_t seed = 1;
  int threads = 1;
  OptimizerSettings optimizer;
  IoOption io;
  bool json = false, quiet = false, no_export = false;
  bool resume = false, overwrite = false, take_over = false, remove_store = false;
  bool binary_data = false;
  std::string tune_matmul = "on", gelu_backward = "auto";
  bool retune_matmul = false;
};

// Adds the options to the subcommand.
void add_train_options(CLI::App& command, TrainOptions& options);

// Throws InputError for what no training can use.
void check(const TrainOptions& options);

}  // namespace spillway::cli
