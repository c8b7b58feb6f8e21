// The search for the fastest plan on one problem: bounds, seeds, then moves, in the simulator.
//
//   1. built-in policies as published, at every micro-batch: what any answer is compared with;
//   2. cases (micro-batch, micro-batches of a layer in a row) in the order of their proven bounds,
//      each begun from the linear program's optimum; a case whose bound is not below the best plan
//      found is left out;
//   3. built-in policies with options that may make them faster;
//   4. the best few of different cases climb, move by move (plan_space.hpp), to where no move
//   helps, and are tried at the other micro-batches in between and at last.
//
// Plans are priced in rounds whose size does not depend on the number of threads, so the same seed
// finds the same plans on any machine; only a limit in seconds may end a search elsewhere.
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "experiments/tune/lower_bound.hpp"
#include "experiments/tune/settle.hpp"

namespace spillway {

struct SearchProgress {
  std::uint64_t explored = 0, effort = 0;  // plans
  double seconds = 0;                      // since the search began
  std::optional<double> best_seconds;      // the step time of the fastest plan so far
};

struct SearchLimits {
  std::uint64_t effort = 1000;  // distinct plans
  // Emitted and simulated for them, without published policies; and for these.
  std::uint64_t tasks = 40'000'000, published_tasks = std::numeric_limits<std::uint64_t>::max();
  bool choose_micro_batch = true;
  std::uint64_t seed = 0;
  std::function<void(const SearchProgress&)> progress;  // may be empty
};

class PlanSearch {
 public:
  PlanSearch(Pricer& pricer, SearchLimits limits, std::vector<BoundCase> cases);

  void run();
  // Looks at that plan, at seeds of the case with the least bound, and at their neighbours only.
  void run_near(const Trial& plan);

  // Of the plans that were priced, those that lack least memory are changed until they fit.
  void make_room();
  // The plan of the lowest rank, whose policy is one of the plans' or a built-in's.
  std::optional<std::pair<Trial, TrialPrice>> best() const;

 private:
  using Jobs = std::vector<std::function<void()>>;

  bool may_go_on();  // there is effort left, and something may be found
  bool has_effort();
  void round(const Jobs& jobs);
  void price_all(const std::vector<Trial>& trials);
  std::vector<std::int64_t> micro_batches() const;
  void price_published();
  void price_variants();
  void settle_all(std::vector<Settled>& all, int most_prices = 10);
  void try_cases();
  void try_other_seeds();
  void try_micro_batches(std::vector<Settled>& plans);
  void try_writing_less();
  std::vector<Settled> starts() const;
  const PlanSpace& space_of(std::int64_t micro_batch) const;
  bool is_pruned(double bound) const;
  bool is_proven() const;  // no plan can be faster than the best found
  double bound_of(std::int64_t micro_batch) const;
  void note(const TrialPrice& price);
  // From a start, move by move, with at most `effort` more plans.
  struct Climb {
    double first_step, last_step;  // halved in between
    bool main_moves = false;       // only those
  };
  Settled climb(Settled at, const Climb& how, std::uint64_t effort);
  std::uint64_t left() const;  // of the effort
  std::vector<std::size_t> try_moves(Settled& at, const std::vector<Move>& all,
                                     std::vector<std::size_t>& open);

  Pricer& pricer_;
  const SearchLimits limits_;
  const std::vector<BoundCase> cases_;
  std::uint64_t published_ = 0;  // plans of built-in policies, beside the effort
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::map<std::int64_t, PlanSpace> spaces_;  // by micro-batch
  std::vector<Settled> found_;                // the best seed of every case
  std::mt19937_64 random_;
  std::optional<double> best_seconds_;
  std::uint64_t tasks_of_published_ = 0;
  bool prices_published_ = false;  // now
};

}  // namespace spillway
