// Prices of plans on one problem: each plan once, several at a time, remembered.
//
// A search asks in rounds of jobs. A job is a function that prices one plan after another, each by
// what the one before came to; jobs of a round run on any number of threads, and none sees what
// another found. So what is priced, and how much of it, depends on the search alone.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/plan/evaluate.hpp"
#include "experiments/plan/price.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// One way to train: a policy with its settings, and the micro-batch.
struct Trial {
  std::int64_t micro_batch = 1;
  std::string policy;
  bool operator<(const Trial& other) const {
    return micro_batch != other.micro_batch ? micro_batch < other.micro_batch
                                            : policy < other.policy;
  }
};

struct TrialPrice {
  bool runs = false;                              // false: the policy refuses the problem
  bool fits = false;                              // if it runs
  std::array<std::uint64_t, tier_count> peaks{};  // bytes by tier, if it runs
  double step_seconds = 0;                        // if it fits, as what follows
  double bytes_written = 0;                       // to the drives, per step
  std::string settled;      // the policy with what it leaves open settled, if it runs
  std::uint64_t tasks = 0;  // emitted to find out: what it took
};

using PricedTrial = std::pair<Trial, TrialPrice>;

// The order in which plans are chosen: seconds of a step, then bytes written. Where part of the
// model is frozen, little need be written: steps that take at most 0.2 % more than the fastest
// count as fast as that, and of those that write as much the fastest comes first.
class Ranking {
 public:
  using Rank = std::array<double, 3>;
  Ranking(const std::map<Trial, TrialPrice>& known, const ModelSpec& model);
  Rank of(const TrialPrice& price) const;

 private:
  double as_fast_ = 0;  // seconds
};

// Prices of an earlier run, and where those of this run are written down.
class PriceJournal {
 public:
  virtual ~PriceJournal() = default;
  // False: not known. Any thread.
  virtual bool find(const std::string& key, TrialPrice& price) = 0;
  virtual void add(const std::string& key, const TrialPrice& price) = 0;
};

class Pricer {
 public:
  // `settle` makes of a problem, whose micro-batch is set, what is built; empty: nothing.
  Pricer(Problem problem, unsigned threads, std::function<void(Problem&)> settle = {},
         PriceJournal* journal = nullptr, Allows allows = {});

  const Problem& problem() const { return problem_; }
  // As it is built with that micro-batch.
  Problem problem_with(std::int64_t micro_batch) const;
  std::uint64_t capacity(Tier tier) const;
  // By how much more memory a plan that runs takes than there is, as Need::overshoot(). 0: it fits.
  double overshoot(const TrialPrice& price) const;
  // Of the plans priced, which run, the one of least overshoot.
  std::optional<PricedTrial> nearest() const;

  // Any thread. Past stop_at(), what is not known yet is not priced: it is as if the policy refused
  // the problem.
  TrialPrice price(const Trial& trial);
  void stop_at(std::chrono::steady_clock::time_point until) { until_ = until; }
  // Looks at the clock: for who has something left to price.
  bool is_stopped();
  bool was_stopped() const { return is_stopped_; }

  // What a full evaluation says of a plan that was priced. Not while a round runs.
  TrialPrice correct(const Trial& trial, const Price& exact);

  // Runs every job; returns when all are done, with the first failure, if any, thrown again.
  void run(const std::vector<std::function<void()>>& jobs);

  // Distinct plans priced so far, and what they took. Not while a round runs.
  std::uint64_t explored() const { return known_.size(); }
  std::uint64_t tasks() const { return tasks_; }
  const std::map<Trial, TrialPrice>& known() const { return known_; }

 private:
  TrialPrice price_anew(const Trial& trial) const;

  const Problem problem_;
  const unsigned threads_;
  PriceJournal* const journal_;
  const std::function<void(Problem&)> settle_;
  const Allows allows_;
  const std::string problem_text_;  // with a journal
  std::optional<std::chrono::steady_clock::time_point> until_;
  std::atomic<bool> is_stopped_ = false;
  std::mutex mutex_;  // of what follows
  std::map<Trial, TrialPrice> known_;
  std::uint64_t tasks_ = 0;
};

}  // namespace spillway
