// `spillway tune`: the fastest plan for a problem, how far it can be from the best there is, and
// what limits it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/message.hpp"
#include "experiments/plan/evaluate.hpp"
#include "experiments/plan/wear.hpp"
#include "experiments/tune/front.hpp"
#include "experiments/tune/search.hpp"

namespace spillway {

// Plans that are priced for an answer of `tune` unless asked otherwise; and for the policy
// `spillway` without settings, wherever it is evaluated.
inline constexpr std::uint64_t default_effort = 1000, quick_effort = 150;
// What these may take in all, in tasks emitted and simulated, without the policies as published.
inline constexpr std::uint64_t default_tasks = 40'000'000, quick_tasks = 4'000'000;

struct TuneOptions {
  bool choose_micro_batch = true;
  std::uint64_t effort = default_effort;
  std::optional<double> budget_seconds;
  std::uint64_t seed = 0;
  unsigned threads = 1;
  bool explains = true;  // prices what relaxing each limit would gain
  WholeRun run;
  // Makes of a problem, whose micro-batch is set, what is built; empty: nothing.
  std::function<void(Problem&)> settle;
  PriceJournal* journal = nullptr;
  std::function<void(const SearchProgress&)> progress;
};

// One limit of the machine, relaxed.
struct Relaxation {
  std::string name;              // "one more drive"
  std::vector<Setting> changes;  // keys of the machine
  double step_seconds = 0;       // of the best plan found there
  double bound_seconds = 0;      // no plan takes less there
  double gain = 0;               // of the step time here, 0 to 1
  Trial plan = {};               // that best plan
};

struct Tuned {
  Evaluation evaluation;
  Wear wear;
};

struct TuneResult {
  std::optional<Tuned> best;            // nothing: no plan that was tried fits
  std::vector<PricedTrial> front;       // front.hpp
  std::vector<PricedTrial> runners_up;  // the best plan of each built-in policy, fastest first
  std::vector<PricedTrial> published;   // the same of those at their defaults
  std::optional<PricedTrial> nearest;   // without `best`: the plan priced that lacks least memory
  BoundCase bound;                      // no plan takes less than bound.seconds; 0: no plan fits
  std::vector<Relaxation> relaxations;  // the one that gains most first
  std::uint64_t explored = 0;           // plans priced, without those of relaxations
  bool stopped_by_clock = false;

  // How much of the best plan's step time is above the bound, 0 to 1.
  double gap() const;
};

// Bounds of the cases that the options allow, the least first.
std::vector<BoundCase> bounds_of(const Problem& problem, bool choose_micro_batch);

TuneResult tune(const Problem& problem, const TuneOptions& options);

}  // namespace spillway
