// What questions are asked of: the best plan of a problem, and what memory says of it.
//
// Every question goes over many problems that differ in a size, and knows no policy. A search for
// plans answers all of them by being a Planner.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/candidates.hpp"
#include "experiments/plan/fit_trials.hpp"

namespace spillway {

// What a problem at its micro-batch needs, with the policy that lacks least.
struct Fit {
  std::string policy;
  Need need;
};

struct Planner {
  std::string name;  // for people; may be empty
  // Candidates::chosen is the best plan; none: nothing fits. With `choose_micro_batch` it is the
  // best over all micro-batches, else of the problem's. Throws InputError where nothing can run the
  // problem.
  std::function<Candidates(const Problem& problem, bool choose_micro_batch)> best;
  // By memory alone. Nothing: no policy can run the problem, or it takes too long to say.
  std::function<std::optional<Fit>(const Problem& problem)> fit;
  // The plan of which fit() said that it fits, evaluated; no other is searched for. Nothing: it
  // does not fit after all.
  std::function<std::optional<Candidate>(const Problem& problem, const Fit& fit)> fitted;
  // Begins a part of an answer: fit() may take as long again as at first.
  std::function<void()> begin = [] {};
  // Whether, since begin(), fit() left something untried because that takes too long: what it said
  // not to fit may then fit.
  std::function<bool()> cut_short = [] { return false; };
  bool choose_micro_batch = true;  // nobody has set one
};

// What the user has said of plans.
struct PlansAsked {
  std::vector<std::string> policies;
  bool choose_micro_batch = true;
  // Of a workload, since a number of tokens makes fewer steps of larger batches.
  std::function<WholeRun(const Workload&)> run = [](const Workload&) { return WholeRun(); };
  EvaluateOne evaluate_one = evaluate;
  std::function<void(Problem&)> settle;  // as in FitQuestion; may be empty
};

// The bounds of all trials of one part of an answer: some seconds.
inline constexpr TrialBounds question_bounds = {.trials = 2000,
                                                .tasks_of_trial = 2'000'000,
                                                .tasks_of_remedy = 20'000'000,
                                                .tasks_of_all = 20'000'000};

// The best plan of `policies`. `bounds` limits what fit() tries after each begin().
Planner planner_of(const PlansAsked& asked, const TrialBounds& bounds = question_bounds);

// Any search for the best plan; fit() searches, too.
Planner planner_of(std::function<Candidates(const Problem&, bool choose_micro_batch)> best,
                   const Durability& durability, bool choose_micro_batch);

// The plan that a planner gives; nothing: nothing fits, or can run the problem.
std::optional<Candidate> best_plan(const Planner& planner, const Problem& problem,
                                   bool choose_micro_batch);

// The tiers that are too small.
std::vector<Tier> full_tiers(const Need& need);

}  // namespace spillway
