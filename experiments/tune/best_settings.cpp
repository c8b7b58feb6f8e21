#include "experiments/tune/best_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "experiments/tune/seeds.hpp"
#include "policies/common/parsed_policy.hpp"

namespace spillway {

namespace {

constexpr std::size_t jobs_of_round = 8;
constexpr int samples_of_option = 5;
// A pass goes on while an option gains so much of the step time.
constexpr double least_gain = 1e-4;

class SettingsClimb {
 public:
  SettingsClimb(Pricer& pricer, const std::string& policy, const SettingsSearch& search)
      : pricer_(pricer),
        search_(search),
        parsed_(parse_policy(policy)),
        policy_(canonical_policy(policy)),
        explored_before_(pricer.explored()),
        tasks_before_(pricer.tasks()) {
    sizes_ = {pricer.problem().workload.micro_batch};
    if (search.choose_micro_batch)
      sizes_ = micro_batch_candidates(pricer.problem().workload.rank_batch());
  }

  std::vector<PricedTrial> best() {
    begin();
    try_variants();
    // Each pass tries numbers in steps half as wide.
    for (double step = 0.25; step >= 0.05; step /= 2) {
      bool gains = true;
      while (gains && may_go_on()) gains = pass(step);
    }
    if (search_.choose_micro_batch && best_)
      price(at_micro_batches(best_->first.policy,
                             candidates_beside(best_->first.micro_batch, sizes_)));
    return best_few();
  }

 private:
  std::uint64_t explored() const { return pricer_.explored() - explored_before_; }
  bool may_go_on() const {
    const bool has_tasks = !best_ || pricer_.tasks() - tasks_before_ < search_.tasks;
    return explored() < search_.effort && has_tasks;
  }

  // In rounds; what is the fastest so far is known after each.
  void price(const std::vector<Trial>& trials) {
    std::size_t end = 0;
    for (std::size_t first = 0; first < trials.size() && may_go_on(); first = end) {
      const std::uint64_t left = search_.effort - explored();
      end = std::min({trials.size(), first + jobs_of_round, first + left});
      std::vector<TrialPrice> prices(end - first);
      std::vector<std::function<void()>> jobs;
      for (std::size_t k = first; k < end; ++k)
        jobs.push_back([&, k] { prices[k - first] = pricer_.price(trials[k]); });
      pricer_.run(jobs);
      for (std::size_t k = first; k < end; ++k) note({trials[k], prices[k - first]});
      if (search_.progress) search_.progress(explored());
    }
  }

  void note(const PricedTrial& one) {
    const TrialPrice& price = one.second;
    if (!price.fits) return;
    if (!best_ || std::pair(price.step_seconds, price.bytes_written) <
                      std::pair(best_->second.step_seconds, best_->second.bytes_written))
      best_ = one;
  }

  static std::vector<Trial> at_micro_batches(const std::string& policy,
                                             const std::vector<std::int64_t>& sizes) {
    std::vector<Trial> trials;
    for (const std::int64_t size : sizes) trials.push_back({size, policy});
    return trials;
  }

  // The policy as given: at micro-batches that are spread out, then beside the best.
  void begin() {
    price(at_micro_batches(policy_, spread_out(sizes_)));
    if (best_) {
      price(at_micro_batches(policy_, candidates_beside(best_->first.micro_batch, sizes_)));
      given_ = best_;
    }
  }

  bool is_held(const std::string& option) const {
    return parsed_.options.contains(option) ||
           std::find(search_.held.begin(), search_.held.end(), option) != search_.held.end();
  }

  // Those of the policy with what is held; where the policy as given does not fit, at every
  // micro-batch.
  void try_variants() {
    std::vector<Trial> all;
    for (const std::string& variant : policy_variants()) {
      const ParsedPolicy parsed = parse_policy(variant);
      if (parsed.info.name != parsed_.info.name) continue;
      std::string policy = policy_;
      for (const auto& [option, value] : parsed.options) {
        if (!is_held(option)) policy = with_policy_option(policy, option, value);
      }
      for (const Trial& trial : at_micro_batches(policy, near_sizes())) all.push_back(trial);
    }
    price(all);
  }

  // The best micro-batch and those on both sides of it; of all, some that are spread out.
  std::vector<std::int64_t> near_sizes() const {
    if (!best_) return spread_out(sizes_);
    std::vector<std::int64_t> near = {best_->first.micro_batch};
    for (const std::int64_t size : {larger(near.front()), smaller(near.front())}) {
      if (size > 0) near.push_back(size);
    }
    return near;
  }

  // The next size, of those spread out, of which there is one; else 0. The largest come first.
  std::int64_t larger(std::int64_t size) const {
    std::int64_t found = 0;
    for (const std::int64_t one : spread_out(sizes_)) {
      if (one > size) found = one;
    }
    return found;
  }
  std::int64_t smaller(std::int64_t size) const {
    for (const std::int64_t one : spread_out(sizes_)) {
      if (one < size) return one;
    }
    return 0;
  }

  // Every option in turn; whether any gained.
  bool pass(double step) {
    const auto seconds = [&] { return best_ ? best_->second.step_seconds : HUGE_VAL; };
    const double before = seconds();
    for (const PolicyOption& option : parsed_.info.options) {
      if (is_held(option.name) || !may_go_on()) continue;
      const Trial at = best_ ? best_->first : Trial{sizes_.back(), policy_};
      std::vector<Trial> here;
      for (const std::string& value : values_of(option, at.policy, step)) {
        const std::string policy = with_policy_option(at.policy, option.name, value);
        if (policy != at.policy) here.push_back({at.micro_batch, policy});
      }
      price(here);
      // What fits may use a larger micro-batch, what does not a smaller one.
      std::vector<Trial> beside;
      for (const Trial& trial : here) {
        const auto known = pricer_.known().find(trial);
        if (known == pricer_.known().end() || !known->second.runs) continue;
        const std::int64_t size =
            known->second.fits ? larger(at.micro_batch) : smaller(at.micro_batch);
        if (size > 0) beside.push_back({size, trial.policy});
      }
      price(beside);
    }
    return seconds() < before * (1 - least_gain);
  }

  // Samples of the domain, values that take less memory, and numbers beside the one that the policy
  // has: in steps of its domain for fractions, in ratios for counts.
  static std::vector<std::string> values_of(const PolicyOption& option, const std::string& policy,
                                            double step) {
    std::vector<std::string> all = option.domain.samples(samples_of_option);
    all.insert(all.end(), option.frugal.begin(), option.frugal.end());
    all.push_back(option.default_value);
    const ParsedPolicy parsed = parse_policy(policy);
    const auto given = parsed.options.find(option.name);
    double number = 0;
    if (read_number(given == parsed.options.end() ? option.default_value : given->second, number)) {
      for (const double sign : {-1.0, 1.0}) {
        all.push_back(fmt::format("{:.6g}", number + sign * step));
        all.push_back(fmt::format("{:.0f}", number + sign));
        all.push_back(fmt::format("{:.0f}", std::round(number * (1 + sign * step))));
      }
    }
    std::set<std::string> seen;
    std::erase_if(all, [&](const std::string& value) {
      return !option.domain.holds(value) || !seen.insert(value).second;
    });
    return all;
  }

  std::vector<PricedTrial> best_few() const {
    constexpr std::size_t few = 12;
    std::vector<PricedTrial> all;
    for (const auto& one : pricer_.known()) {
      const bool is_ours = parse_policy(one.first.policy).info.name == parsed_.info.name;
      if (one.second.fits && is_ours) all.push_back(one);
    }
    std::stable_sort(all.begin(), all.end(), [](const PricedTrial& a, const PricedTrial& b) {
      return std::pair(a.second.step_seconds, a.second.bytes_written) <
             std::pair(b.second.step_seconds, b.second.bytes_written);
    });
    if (all.size() > few) all.resize(few);
    const auto is_given = [&](const PricedTrial& one) {
      return given_ && !(one.first < given_->first) && !(given_->first < one.first);
    };
    if (given_ && std::none_of(all.begin(), all.end(), is_given)) all.push_back(*given_);
    return all;
  }

  Pricer& pricer_;
  const SettingsSearch& search_;
  const ParsedPolicy parsed_;
  const std::string policy_;
  const std::uint64_t explored_before_, tasks_before_;
  std::vector<std::int64_t> sizes_;  // micro-batches, the largest first
  std::optional<PricedTrial> best_, given_;
};

}  // namespace

std::vector<PricedTrial> best_settings(Pricer& pricer, const std::string& policy,
                                       const SettingsSearch& search) {
  return SettingsClimb(pricer, policy, search).best();
}

}  // namespace spillway
