// Settles what a policy leaves open, by trying its placements, and builds the schedule.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "policies/common/emission.hpp"
#include "policies/cost/costs.hpp"

namespace spillway {

// Throws InputError for a problem that is wrong, and for a schedule that is too long to build.
void require_buildable(const Problem& problem, int steps);

// Settles the options that are left at auto.
class Settler {
 public:
  virtual ~Settler() = default;
  Settler(const Problem& problem, const ParsedPolicy& parsed, int steps)
      : problem_(problem),
        parsed_(parsed),
        steps_(steps),
        alternatives_(policy_of(parsed)->placements(problem)),
        last_(alternatives_.size() - 1) {}

  Schedule build();
  // What build() has looked at, and is all that its schedule follows from but for the sizes of
  // model, workload and the memories of GPU and host: the placements, the plans of those that it
  // has tried, and whether the drives had room for every layout. Nothing where it also follows from
  // rates of the machine.
  struct Grounds {
    std::vector<PolicyOptions> placements;
    std::map<std::size_t, std::string> plans;  // as text
    std::uint64_t ssd_capacity = 0, most_on_ssd = 0;
  };
  std::optional<Grounds> grounds() const;
  // Whether build() would look at the same.
  bool is_on(const Grounds& grounds) const;

  // The alternative that is taken.
  std::size_t choose() {
    // Most often the gaps between buffers do not matter; trials go on only where they do.
    std::size_t chosen = first_that_may_fit({Tier::gpu, Tier::host});
    TierBytes extent = whole_extent(chosen);
    while (chosen < last_ && !fit(extent, {Tier::gpu, Tier::host})) {
      chosen = first_that_fits(after(chosen), {Tier::gpu, Tier::host});
      extent = whole_extent(chosen);
    }
    if (last_ == 0 || fit(extent, {Tier::gpu, Tier::host})) return chosen;
    // None fits: of what is said to be lacking, one should be able to give it.
    const std::size_t instead = lacking_least();
    if (instead == chosen) return chosen;
    std::optional<Program> first = std::move(program_);
    if (lacking(whole_extent(instead)) <= lacking(extent)) return instead;
    program_ = std::move(first);
    return chosen;
  }
  std::size_t alternatives() const { return alternatives_.size(); }
  ParsedPolicy with(std::size_t k) const {
    ParsedPolicy one = parsed_;
    for (const auto& [key, value] : alternatives_[k]) one.options[key] = value;
    return one;
  }

 protected:
  // That what is settled follows from the plan of alternative `k`.
  void note_tried(std::size_t k) { tried_.insert(k); }
  // The extent of a program's memory, which is laid out by what there is.
  TierBytes extent_of(Program& program) {
    const MemoryUse& use = program.plan_memory();
    most_on_ssd_ = std::max(most_on_ssd_, use.first_extent[static_cast<std::size_t>(Tier::ssd)]);
    return use.extent;
  }

  using Tiers = std::initializer_list<Tier>;

  virtual bool fit(const TierBytes& bytes, Tiers tiers);
  // Most bytes live at once, in a trial.
  virtual TierBytes live_in_trial(std::size_t k) {
    return trial(k, Recording::lifetimes).live_peaks();
  }
  // With the gaps between buffers.
  virtual TierBytes trial_extent(std::size_t k) {
    Program program = trial(k, Recording::all);
    return extent_of(program);
  }
  virtual TierBytes whole_extent(std::size_t k) {
    if (is_long_) require_length_of(k);
    program_ = full(k);
    return extent_of(*program_);
  }

  const Problem& problem_;
  const ParsedPolicy& parsed_;
  int steps_;

 private:
  void require_length_of(std::size_t k) const;
  Plan plan(std::size_t k) const { return policy_of(with(k))->plan(problem_, Costs(problem_)); }
  bool keeps_any(std::size_t k) const {
    const auto given = retention_of(with(k));
    return given ? given->keeps_any() : plan(k).retention.keeps_any();
  }
  Program full(std::size_t k, const TierBytes& spare = {}) {
    note_tried(k);
    Program program = emit(problem_, with(k), {.steps = steps_, .spare = spare});
    tasks_tried_ += program.task_count();
    return program;
  }
  // A trial of two steps and the epilogue is close to the peaks of longer schedules.
  Program trial(std::size_t k, Recording recording) {
    note_tried(k);
    Program program =
        emit(problem_, with(k), {.steps = std::min(steps_, 2), .recording = recording});
    tasks_tried_ += program.task_count();
    return program;
  }
  const TierBytes& live(std::size_t k) {
    const auto [entry, is_new] = live_.try_emplace(k);
    if (is_new) entry->second = live_in_trial(k);
    return entry->second;
  }

  // The first alternative whose live bytes fit `tiers`; the last one if none does. From one to the
  // next fewer bytes are live in memory and more on the ssd, so that bisection finds it (if the ssd
  // is too small for it, it is for all that come after). Most often it is the very first.
  std::size_t first_that_may_fit(Tiers tiers) {
    if (last_ == 0 || fit(live(0), tiers)) return 0;
    std::size_t from = 1, to = last_;
    while (from < to) {
      const std::size_t middle = (from + to) / 2;
      if (fit(live(middle), tiers)) {
        to = middle;
      } else {
        from = middle + 1;
      }
    }
    return from;
  }
  // Gaps between buffers come on top, more of them in one alternative than in another: the first
  // one at or after `from` whose placed buffers fit in a trial. Of schedules so long that trying
  // one by one takes seconds, half of what is left is passed over at a time.
  std::size_t first_that_fits(std::size_t from, Tiers tiers) {
    while (from < last_ && !fit(trial_extent(from), tiers)) from = after(from);
    return from;
  }
  // The first of those that lack the least: shares of what they take, of each memory that lacks,
  // added up.
  // Of many alternatives some are looked at.
  std::size_t lacking_least() {
    constexpr std::size_t most_looked_at = 16;
    const std::size_t stride = std::max<std::size_t>(1, last_ / most_looked_at);
    std::size_t best = last_;
    for (std::size_t k = 0; k < last_; k += stride) {
      const double share = lacking(live(k));
      if (share < lacking(live(best)) || (share == lacking(live(best)) && k < best)) best = k;
    }
    return best;
  }
  // Of the memories, not of the ssd.
  double lacking(const TierBytes& bytes) const {
    const TierBytes capacity = {problem_.machine.gpu.memory, problem_.machine.host.memory};
    double shares = 0;
    for (std::size_t tier = 0; tier < 2; ++tier) {
      if (bytes[tier] <= capacity[tier]) continue;
      shares +=
          static_cast<double>(bytes[tier] - capacity[tier]) / static_cast<double>(bytes[tier]);
    }
    return shares;
  }
  std::size_t after(std::size_t k) const {
    constexpr std::uint64_t most_tasks_tried = 4'000'000;
    return k + (tasks_tried_ < most_tasks_tried ? 1 : (last_ - k + 1) / 2);
  }

  std::vector<PolicyOptions> alternatives_;
  std::size_t last_;
  std::optional<Program> program_;         // of the last whole_extent()
  std::map<std::size_t, TierBytes> live_;  // of trials, by alternative
  std::uint64_t tasks_tried_ = 0;
  std::set<std::size_t> tried_;  // alternatives
  bool is_long_ = false;         // perhaps too long to be built
  std::uint64_t most_on_ssd_ = 0;
};

}  // namespace spillway
