// Trials of whether a plan fits: schedules that are built within bounds, so that looking for what
// would fit takes seconds.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/evaluate.hpp"
#include "policies/workload/durability.hpp"

namespace spillway {

// One way to run the training, apart from the machine's sizes.
struct Way {
  std::string policy;
  std::int64_t micro_batch = 1;
};

// What does not fit: one policy, or all that were tried.
struct FitQuestion {
  Problem problem;
  bool choose_micro_batch = false;
  std::vector<std::string> policies;
  std::optional<Way> searched;  // the plan that lacks least of those that a search has tried
  bool other_policies = true;   // whether another one would be an answer, too
  Durability durability;
  int steps = default_steps;
  // Makes of a problem what is built; empty: nothing.
  std::function<void(Problem&)> settle;
};

// By tier.
using Sizes = std::array<std::uint64_t, tier_count>;

Sizes sizes_of(const Machine& machine);
// Where there were no drives and the ssd tier gets some bytes, there is one.
void set_sizes(Machine& machine, const Sizes& sizes);
// What enlarging one more memory counts, as a share of what there is of it.
inline constexpr double one_more_memory = 0.5;

// What a schedule with its store needs of each tier, and what there is.
struct Need {
  Sizes bytes{}, capacity{};
  std::string settled;  // the policy with its options settled
  // By how much more, relative to what there is, summed over the tiers.
  double overshoot() const;
  // How hard it is to have that: one memory is enlarged more easily than two, and that of a GPU not
  // at all, so that each that lacks counts one_more_memory beside its overshoot.
  double difficulty() const;
  bool fits() const { return overshoot() == 0; }
};
Need need_of(const Schedule& schedule, bool durable);

// How many schedules may be tried, and of how many tasks: of one schedule, as far as that shows
// before it is built, to find one remedy, and in all. The default keeps a hint to some seconds.
struct TrialBounds {
  int trials = 120;
  std::int64_t tasks_of_trial = 3'000'000, tasks_of_remedy = 6'000'000, tasks_of_all = 60'000'000;
};

class FitTrials {
 public:
  explicit FitTrials(const FitQuestion& question, const TrialBounds& bounds = {})
      : question_(question), bounds_(bounds) {}

  // From here on all bounds are as at first, and nothing has been left untried.
  void begin();
  // From here on as many trials again as one remedy may take, or so many times that, while the
  // bound on all of them lasts.
  void begin_remedy(int times = 1);

  // By a schedule of a few steps. Nothing where the way cannot be run, or the trials are used up.
  std::optional<Need> trial(const Problem& problem, const Way& way, bool durable);
  // A trial and, where it fits, as many steps as the question has.
  std::optional<Need> verified(const Problem& problem, const Way& way, bool durable);
  bool fits(const Problem& problem, const Way& way, bool durable);
  // The least sizes, rounded up, with which the way fits; those of tiers that suffice stay.
  // Verified.
  std::optional<Sizes> least_sizes(const Way& way);
  // Whether something was left untried because of the bounds, since begin().
  bool cut_short() const { return cut_short_; }

 private:
  std::optional<Need> need(Problem problem, const Way& way, bool durable, int steps);
  std::optional<Need> need_with(const Sizes& sizes, const Way& way, int steps);
  bool raise(Sizes& sizes, const Way& way, int steps);
  void lower(Sizes& sizes, const Way& way, int steps);

  const FitQuestion& question_;
  const TrialBounds bounds_;
  bool cut_short_ = false;
  int trials_left_ = 0;
  std::int64_t tasks_left_ = 0, tasks_ = 0;
};

}  // namespace spillway
