// From one plan to another, one setting at a time: what each change gains.
//
// The gain of a setting depends on what was changed before it. So the order is part of the answer,
// and beside each step stand two gains that need no order: of the setting changed alone in a, and
// of the setting changed last, when all others are as in b already.
//
// The gains of the steps add up to the whole difference, for each step begins where the one before
// it ended. A plan between the two that cannot run or does not fit is no place to stop at: its
// change is made together with the next.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/why/plan_settings.hpp"

namespace spillway {

// What one plan takes.
struct PlanTime {
  std::optional<double> seconds;  // of a step; nothing: it cannot run, or does not fit
  std::string bound_by;
  std::string why_not;
  std::uint64_t tasks = 0;  // emitted and simulated to find out
};
using TimePlan = std::function<PlanTime(const PlanState&)>;  // any thread

struct AblationStep {
  std::vector<std::size_t> settings;  // changed together, by index of PlanSettings::all()
  std::string why_together;           // why the first of several could not be changed before
  double before_seconds = 0, after_seconds = 0;
  std::string bound_by;  // after it
  double gain() const { return before_seconds - after_seconds; }
};

// What a setting gains by itself. Without seconds that plan cannot run, or does not fit.
struct SettingEffect {
  struct Gain {
    std::optional<double> seconds;
    std::string why_not;  // where there are none
  };
  Gain alone;  // changed in a
  Gain last;   // changed last: what b loses without it
};

struct Ablation {
  std::vector<AblationStep> steps;
  std::vector<SettingEffect> effects;  // by setting
  double a_seconds = 0, b_seconds = 0;
  std::size_t given = 0;  // so many settings were changed first, in the order asked for
  bool ranked = true;     // false: the last ones by what they gain alone, for want of time
  std::size_t plans = 0;  // distinct ones that were tried
  std::string why_not;    // nothing else is set: one of the ends cannot be built as a plan
};

// Enough that a greedy order of thirty settings of a usual problem is ranked to its end; an answer
// takes a minute or two at most.
inline constexpr std::uint64_t most_tasks_of_ablation = 150'000'000;

struct AblationOptions {
  std::vector<std::string> first;  // settings that are changed first, in this order
  unsigned threads = 1;
  std::uint64_t most_tasks = most_tasks_of_ablation;  // beyond, the order is that of gains alone
  // Told how many plans were tried, of how many at most. Any thread, one at a time.
  std::function<void(std::size_t done, std::size_t most)> progress;
};

// After the settings named first, the one that gains most is changed next, of those as good the
// first in PlanSettings::all(). One that cannot be changed by itself, and without which b loses a
// hundredth of what a takes or is no plan, counts with no more others than it needs in a, and is
// changed with those of them that it still needs. Where
// none gains a hundredth, and some need more than in a, the one of these without which b loses most
// is changed next, with no more than it needs there. The same input gives the same answer, whatever
// the threads. Throws InputError for names that are none of the settings.
Ablation ablate(const PlanSettings& settings, const TimePlan& time, const AblationOptions& options);

}  // namespace spillway
