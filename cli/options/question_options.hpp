// The options that ask a question of many plans, and the answers: --smallest-batch, --cheapest
// (docs/questions.md).
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "cli/options/problem_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/text/progress.hpp"
#include "experiments/questions/planner.hpp"

namespace spillway::cli {

// What the options say of plans by these policies, of which `auto` is all candidates. The options
// are used as long as the answer is.
PlansAsked plans_asked(const ProblemOptions& options, const RunOptions& run, const Problem& problem,
                       const std::vector<std::string>& policies);

// Who answers.
struct Planners {
  Planner all;
  std::vector<std::string> policies;  // for hints, where nothing fits
};

// The best of these policies. The options and `activity` are used as long as the planners are.
Planners planners_of(const ProblemOptions& options, const RunOptions& run, const Problem& problem,
                     const std::vector<std::string>& policies, Activity& activity);

// Throws FitError, with what would help, where not even the smallest batch of the problem fits: one
// sequence, or one micro-batch where its size is set.
[[noreturn]] void fail_to_fit_at_all(const ProblemOptions& options, const RunOptions& run,
                                     const Problem& problem,
                                     const std::vector<std::string>& policies);

struct QuestionOptions {
  std::string smallest_batch, cheapest;
  double tokens_per_second = 0, drives_last = 0;

  void add_to(CLI::App& command);
  bool any() const { return !smallest_batch.empty() || !cheapest.empty(); }
  // With --cheapest, the machine of the price list where none is named. Throws InputError.
  void complete(ProblemOptions& problem) const;
  // Prints the answer to the question that was asked. Throws FitError where there is none.
  void answer(const ProblemOptions& options, const RunOptions& run, const Problem& problem,
              const Planners& planners, Activity& activity, bool json, int& exit_code) const;
};

// "90%" or "0.9", above 0 and at most 1, of the setting of that name. Throws InputError.
double parse_share(const std::string& setting, const std::string& text);

}  // namespace spillway::cli
