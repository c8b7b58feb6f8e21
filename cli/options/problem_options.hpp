// The options that say what is to be trained and on what, shared by most subcommands.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "cli/text/progress.hpp"
#include "experiments/plan/evaluate.hpp"
#include "experiments/plan/problem_request.hpp"

namespace spillway::cli {

struct ProblemOptions : ProblemRequest {
  // Adds the options to a subcommand, which fill this in. `machine_required`: --machine must be
  // given. `without`: keys of the workload that the subcommand does not have.
  void add_to(CLI::App& command, bool machine_required,
              const std::vector<std::string>& without = {});
  // And --framework, for subcommands that simulate.
  void add_framework_to(CLI::App& command);
  using ProblemRequest::evaluation;
  // The same, and `activity` is told of each evaluation.
  EvaluateOne evaluation(const Problem& problem, Activity& activity) const;
};

// What figures rest on beside model, machine, batch and policy, in words: "bf16, 6 steps simulated;
// set by hand: ssd.count=6". `steps` 0: not said.
std::string assumptions_text(const Problem& problem, int steps);

}  // namespace spillway::cli
