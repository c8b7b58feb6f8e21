// The options that say how a training is kept safe and how long it is: what decides its wear.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

#include "experiments/plan/wear.hpp"

namespace spillway::cli {

// A number of tokens as people write it: "300B", "1.5T", "2e9". Throws InputError.
double parse_tokens(const std::string& text);

// Of --durability, which durability_of() reads.
std::string durability_help();

struct RunOptions {
  std::string durability;
  std::optional<std::int64_t> steps;
  std::string tokens;

  // Adds --durability, --steps and --tokens, of the whole training.
  void add_to(CLI::App& command);
  // Adds --durability alone.
  void add_durability_to(CLI::App& command);
  WholeRun whole_run(const Workload& workload, const std::string& framework) const;
};

}  // namespace spillway::cli
