// One plan in words: its memory, its store, what it writes; and what to type where it does not fit.
#pragma once

#include <string>

#include "cli/options/problem_options.hpp"
#include "experiments/plan/candidates.hpp"
#include "experiments/plan/hints.hpp"

namespace spillway::cli {

// "2.3 h", "12 days", "1.4 years"
std::string long_time(double seconds);
// "8 ranks, 4 GPUs on 2 nodes: 16 sequences a step each"; empty where there is one.
std::string ranks_text(const Problem& problem);
// "gpt-65b on rtx4090-12ssd, policy ..." and the workload, a line each.
std::string header_text(const Candidate& candidate);
// Between what times 90 % of runs are to lie, a line after `margin`; empty where the machine file
// has no spreads.
std::string interval_text(const Evaluation& evaluation, const std::string& margin);
// Peak and capacity of every tier, a line each; of the ssd tier with the store's second copies.
std::string memory_text(const Candidate& candidate);
// "ssd written", "commits", "whole run" and "drives", each where there is something to say.
// `margin` is put before every line; `width` is that of the labels.
std::string wear_text(const Wear& wear, const Machine& machine, const std::string& margin = "",
                      int width = 13);

// Evaluates `policies`, of which `auto` is all candidates.
Candidates evaluate_as_asked(const ProblemOptions& options, const Problem& problem,
                             const std::vector<std::string>& policies, const WholeRun& run,
                             int steps);
// Throws FitError, with remedies, for what evaluate_as_asked(), with the same arguments, found to
// fit nowhere. `other_policies`: another one would be an answer, too.
[[noreturn]] void fail_to_fit(const Candidates& candidates, const ProblemOptions& options,
                              const Problem& problem, const std::vector<std::string>& policies,
                              const WholeRun& run, int steps, bool other_policies = true);

}  // namespace spillway::cli
