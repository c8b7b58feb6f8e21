#include "experiments/why/ablation.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>

#include "base/errors.hpp"
#include "experiments/plan/in_parallel.hpp"

namespace spillway {

namespace {

using Changed = PlanSettings::Changed;

class AblationSearch {
 public:
  AblationSearch(const PlanSettings& settings, const TimePlan& time, const AblationOptions& options)
      : settings_(settings),
        time_(time),
        options_(options),
        count_(settings.all().size()),
        current_(count_, false) {}

  Ablation search() {
    const std::vector<std::size_t> first = settings_.find(options_.first);
    if (!find_ends()) return std::move(answer_);
    find_effects();
    find_needs();
    for (const std::size_t setting : first) change(setting);
    answer_.given = first.size();
    change_greedily();
    answer_.plans = known_.size();
    return std::move(answer_);
  }

 private:
  // Tries those that are not known yet.
  void try_all(const std::vector<Changed>& all) {
    std::vector<PlanState> unknown;
    for (const Changed& one : all) {
      std::optional<PlanState> state = state_of(one);
      const bool is_new = state && !known_.contains(*state) &&
                          std::find(unknown.begin(), unknown.end(), *state) == unknown.end();
      if (is_new) unknown.push_back(*std::move(state));
    }
    std::vector<PlanTime> times(unknown.size());
    in_parallel(unknown.size(), options_.threads, [&](std::size_t k) {
      times[k] = time_(unknown[k]);
      const std::lock_guard lock(mutex_);
      ++tried_;
      if (options_.progress) options_.progress(tried_, std::max(tried_, most_plans()));
    });
    for (std::size_t k = 0; k < unknown.size(); ++k) {
      tasks_ += times[k].tasks;
      known_.emplace(unknown[k], std::move(times[k]));
    }
  }
  std::size_t most_plans() const { return 2 + 2 * count_ + count_ * (count_ + 1) / 2; }

  // Nothing where a value does not go with the others; why is in `refused_`.
  std::optional<PlanState> state_of(const Changed& changed) {
    try {
      return settings_.with(changed);
    } catch (const InputError& error) {
      refused_.why_not = error.what();
      return {};
    }
  }

  const PlanTime& at(const Changed& changed) {
    const std::optional<PlanState> state = state_of(changed);
    if (!state) return refused_;
    if (!known_.contains(*state)) try_all({changed});
    return known_.at(*state);
  }

  // False: one of the two cannot be built from the settings.
  bool find_ends() {
    const Changed none(count_, false), all(count_, true);
    try_all({none, all});
    for (const Changed& end : {none, all}) {
      if (at(end).seconds) continue;
      answer_.why_not = at(end).why_not;
      return false;
    }
    answer_.a_seconds = *at(none).seconds;
    answer_.b_seconds = *at(all).seconds;
    return true;
  }

  void find_effects() {
    std::vector<Changed> singles;
    for (std::size_t k = 0; k < count_; ++k) {
      singles.push_back(only(k));
      singles.push_back(all_but(k));
    }
    try_all(singles);
    for (std::size_t k = 0; k < count_; ++k) {
      SettingEffect effect;
      if (const PlanTime& time = at(only(k)); time.seconds) {
        effect.alone.seconds = answer_.a_seconds - *time.seconds;
      } else {
        effect.alone.why_not = time.why_not;
      }
      if (const PlanTime& time = at(all_but(k)); time.seconds) {
        effect.last.seconds = *time.seconds - answer_.b_seconds;
      } else {
        effect.last.why_not = time.why_not;
      }
      answer_.effects.push_back(std::move(effect));
    }
  }
  // What the settings need in a that cannot be changed there by themselves and that b loses much
  // without, or cannot do without.
  void find_needs() {
    std::vector<std::size_t> all(count_);
    std::iota(all.begin(), all.end(), std::size_t{0});
    needs_.resize(count_);
    for (std::size_t k = 0; k < count_ && tasks_ <= options_.most_tasks; ++k) {
      const std::optional<double> lost = answer_.effects[k].last.seconds;
      if (!answer_.effects[k].alone.seconds && (!lost || *lost >= little * answer_.a_seconds))
        needs_[k] = needed_by(k, all);
    }
  }
  Changed only(std::size_t k) const {
    Changed one(count_, false);
    one[k] = true;
    return one;
  }
  Changed all_but(std::size_t k) const {
    Changed one(count_, true);
    one[k] = false;
    return one;
  }

  // With what waits for a plan that runs, and one more.
  Changed with(std::size_t setting) const {
    Changed next = current_;
    for (const std::size_t one : waiting_) next[one] = true;
    next[setting] = true;
    return next;
  }
  bool is_changed(std::size_t setting) const {
    return current_[setting] ||
           std::find(waiting_.begin(), waiting_.end(), setting) != waiting_.end();
  }
  std::vector<std::size_t> unchanged() const {
    std::vector<std::size_t> all;
    for (std::size_t k = 0; k < count_; ++k) {
      if (!is_changed(k)) all.push_back(k);
    }
    return all;
  }

  // Makes a step, or lets the setting wait for the next one.
  void change(std::size_t setting) {
    const Changed next = with(setting);
    const PlanTime& time = at(next);
    waiting_.push_back(setting);
    if (!time.seconds) {
      if (why_waiting_.empty()) why_waiting_ = time.why_not;
      return;
    }
    const double before = seconds_now();
    std::string why = waiting_.size() > 1 ? std::move(why_waiting_) : std::string();
    answer_.steps.push_back(
        {std::move(waiting_), std::move(why), before, *time.seconds, time.bound_by});
    current_ = next;
    waiting_.clear();
    why_waiting_.clear();
  }

  // A setting that is changed next, and those that are changed with it.
  using Bundle = std::vector<std::size_t>;
  Changed with(const Bundle& bundle) const {
    Changed next = current_;
    for (const std::size_t one : waiting_) next[one] = true;
    for (const std::size_t one : bundle) next[one] = true;
    return next;
  }
  // Of the settings that are left: each by itself or, where that does not run, with those of what
  // it needs in a that it still needs.
  std::vector<Bundle> bundles(const std::vector<std::size_t>& left) {
    std::vector<Bundle> all;
    for (const std::size_t one : left) all.push_back({one});
    for (const std::size_t one : left) {
      if (needs_[one].empty() || at(with(one)).seconds) continue;
      Bundle bundle = {one};
      std::copy_if(needs_[one].begin(), needs_[one].end(), std::back_inserter(bundle),
                   [&](std::size_t other) { return !is_changed(other); });
      if (bundle.size() == 1 || bundle.size() >= left.size()) continue;
      const std::vector<std::size_t> needed = needed_by(one, bundle);
      bundle.resize(1);
      bundle.insert(bundle.end(), needed.begin(), needed.end());
      all.push_back(std::move(bundle));
    }
    return all;
  }

  void change_greedily() {
    for (std::vector<std::size_t> left = unchanged(); !left.empty(); left = unchanged()) {
      if (tasks_ > options_.most_tasks) {
        answer_.ranked = false;
        change_by_effect(std::move(left));
        return;
      }
      std::vector<Changed> tries;
      for (const std::size_t one : left) tries.push_back(with(one));
      try_all(tries);
      std::optional<Bundle> best;
      for (const Bundle& one : bundles(left)) {
        const std::optional<double> seconds = at(with(one)).seconds;
        if (seconds && (!best || *seconds < *at(with(*best)).seconds)) best = one;
      }
      const bool gains_little =
          !best || seconds_now() - *at(with(*best)).seconds < little * answer_.a_seconds;
      if (gains_little && change_with_others(left)) continue;
      for (const std::size_t one : best.value_or(Bundle{left.front()})) change(one);
    }
  }
  double seconds_now() const {
    return answer_.steps.empty() ? answer_.a_seconds : answer_.steps.back().after_seconds;
  }

  // Changes a setting of `left` that does not run by itself and that b loses most without, if it
  // loses enough to matter, with those of the others that it cannot do without. False: there is
  // none.
  bool change_with_others(const std::vector<std::size_t>& left) {
    if (!waiting_.empty()) return false;
    std::optional<std::size_t> most;
    for (const std::size_t one : left) {
      const auto lost = answer_.effects[one].last.seconds;
      if (at(with(one)).seconds || !lost || *lost < little * answer_.a_seconds) continue;
      if (!most || *lost > *answer_.effects[*most].last.seconds) most = one;
    }
    if (!most) return false;
    const std::vector<std::size_t> needed = needed_by(*most, left);
    if (needed.size() + 1 == left.size()) return false;  // in the usual order, then
    change(*most);
    for (const std::size_t one : needed) change(one);
    return true;
  }

  // Those of `left` that a setting of them needs, to run: all that is left makes b, which does.
  // Those come first that go without in vain.
  std::vector<std::size_t> needed_by(std::size_t setting, const std::vector<std::size_t>& left) {
    std::vector<std::size_t> needed;
    for (const std::size_t one : left) {
      if (one != setting) needed.push_back(one);
    }
    for (std::size_t k = needed.size(); k-- > 0;) {
      Changed fewer = with(setting);
      for (std::size_t other = 0; other < needed.size(); ++other)
        if (other != k) fewer[needed[other]] = true;
      if (at(fewer).seconds) needed.erase(needed.begin() + static_cast<std::ptrdiff_t>(k));
    }
    return needed;
  }

  // What gained most alone first; last, what cannot be alone.
  void change_by_effect(std::vector<std::size_t> left) {
    std::stable_sort(left.begin(), left.end(), [&](std::size_t a, std::size_t b) {
      return answer_.effects[b].alone.seconds < answer_.effects[a].alone.seconds;
    });
    for (const std::size_t one : left) change(one);
  }

  // Of what a takes: gains below are no reason to be changed next.
  static constexpr double little = 0.01;

  const PlanSettings& settings_;
  const TimePlan& time_;
  const AblationOptions& options_;
  const std::size_t count_;
  Changed current_;                   // the plan reached
  std::vector<std::size_t> waiting_;  // changed, but for a plan that runs
  std::string why_waiting_;
  std::vector<std::vector<std::size_t>> needs_;  // by setting; see find_needs()
  std::map<PlanState, PlanTime> known_;
  PlanTime refused_;
  std::uint64_t tasks_ = 0;
  std::mutex mutex_;
  std::size_t tried_ = 0;
  Ablation answer_;
};

}  // namespace

Ablation ablate(const PlanSettings& settings, const TimePlan& time,
                const AblationOptions& options) {
  return AblationSearch(settings, time, options).search();
}

}  // namespace spillway
