// `compare A B --why`: why one plan is faster than another (docs/why.md).
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "cli/options/problem_options.hpp"
#include "experiments/plan/wear.hpp"

namespace spillway::cli {

struct WhyOptions {
  bool why = false;
  std::string gantt, first;

  // Adds --why, --gantt and --change-first.
  void add_to(CLI::App& command);
  // Prints the answer for the two policies. Throws InputError where there are not two, and
  // FitError, with remedies, where one of them fits nowhere.
  void answer(const ProblemOptions& options, const std::vector<std::string>& policies,
              const WholeRun& run, bool json, int& exit_code) const;
};

}  // namespace spillway::cli
