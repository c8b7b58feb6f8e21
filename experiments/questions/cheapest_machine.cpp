#include "experiments/questions/cheapest_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

// An error without its "file:line:column": what a part sets is on no line of the base machine.
std::string without_place(const std::string& text) {
  const std::size_t end = text.find(": ");
  const std::string place = text.substr(0, end);
  const bool is_place =
      place.find(':') != std::string::npos && place.find(' ') == std::string::npos;
  return is_place ? text.substr(end + 2) : text;
}

class MachineSearch {
 public:
  MachineSearch(const ProblemRequest& request, const Planner& planner, const PriceList& list,
                const MachineWish& wish, const std::function<void(const std::string&)>& say)
      : request_(request), planner_(planner), list_(list), say_(say), machines_(list.machines()) {
    answer_.wish = wish;
    answer_.machines = machines_.size();
    for (const std::string& setting : request.set_by_hand()) refuse_to_set(setting);
  }

  CheapestMachine search() {
    // The machines that have most of everything: what they do not reach rules out many.
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      if (!exceeded(i)) evaluate(i);
    }
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      if (answer_.fast_enough.size() > most_runners_up) break;
      if (ruled_out(i)) continue;
      const MachinePoint& point = evaluate(i);
      if (reaches(point)) answer_.fast_enough.push_back(point);
    }
    answer_.tried = points_.size() - answer_.left_out;
    if (answer_.tried == 0)
      throw InputError(list_.origin, 0, answer_.why_left_out,
                       "none of the machines of the list can be: see docs/questions.md");
    find_fastest_below();
    if (!answer_.fastest_below && answer_.fast_enough.empty()) find_shortage();
    if (!answer_.fast_enough.empty())
      answer_.plan = plan_on(on(answer_.fast_enough.front().machine));
    return std::move(answer_);
  }

 private:
  // Such a machine is none that the parts make.
  void refuse_to_set(const std::string& setting) const {
    const std::string key = setting.substr(0, setting.find('='));
    const std::optional<std::string> part = list_.part_that_sets(key);
    if (!part) return;
    throw InputError(Setting{"set", setting} + fmt::format(": {} is set by {}", key, *part),
                     fmt::format("change the part in {}, or take it out of the list and {} "
                                 "holds on every machine",
                                 list_.origin, key));
  }

  Problem on(const PricedMachine& machine) const {
    ProblemRequest request = request_;
    if (request.machine.empty()) request.machine = list_.machine;
    request.overrides = machine.overrides;
    request.overrides.insert(request.overrides.end(), request_.overrides.begin(),
                             request_.overrides.end());
    return request.problem();
  }

  bool reaches(double tokens_per_second, const std::optional<double>& drive_years) const {
    const MachineWish& wish = answer_.wish;
    return tokens_per_second >= wish.tokens_per_second &&
           drive_years.value_or(wish.drive_years) >= wish.drive_years;
  }
  bool reaches(const MachinePoint& point) const {
    return point.fits && reaches(point.tokens_per_second, point.drive_years);
  }

  // The fastest plan that grants the wish or, where none does, the fastest: one that writes less to
  // the drives may be slower and fast enough.
  std::optional<Candidate> plan_on(const Problem& problem) const {
    try {
      Candidates found = planner_.best(problem, planner_.choose_micro_batch);
      if (!found.chosen) return {};
      std::size_t best = *found.chosen;
      const auto grants = [&](std::size_t i) {
        const Candidate& one = found.all[i];
        return one.evaluation.result &&
               reaches(one.evaluation.result->tokens_per_second, one.wear.drive_years());
      };
      for (std::size_t i = 0; i < found.all.size(); ++i) {
        if (grants(i) &&
            (!grants(best) || found.all[i].evaluation.result->tokens_per_second >
                                  found.all[best].evaluation.result->tokens_per_second))
          best = i;
      }
      return std::move(found.all[best]);
    } catch (const InputError&) {
      return {};
    }
  }

  const MachinePoint& evaluate(std::size_t i) {
    const auto [at, is_new] = points_.try_emplace(i);
    MachinePoint& point = at->second;
    if (!is_new) return point;
    point.machine = machines_[i];
    point.name = list_.name_of(machines_[i]);
    if (say_) say_(fmt::format("machine {} of {}: {}", i + 1, machines_.size(), point.name));
    Problem problem;
    try {
      problem = on(machines_[i]);
    } catch (const InputError& error) {
      point.left_out = true;
      if (answer_.left_out++ == 0)
        answer_.why_left_out = point.name + ": " + without_place(error.what());
      return point;
    }
    const std::optional<Candidate> plan = plan_on(problem);
    if (!plan) return point;
    const Schedule& schedule = plan->evaluation.schedule;
    const SimulationResult& result = *plan->evaluation.result;
    point.fits = true;
    point.policy = schedule.policy();
    point.bound_by = result.bound_by;
    point.micro_batch = schedule.problem().workload.micro_batch;
    point.step_seconds = result.step_seconds;
    point.tokens_per_second = result.tokens_per_second;
    point.efficiency = result.efficiency;
    point.drive_years = plan->wear.drive_years();
    return point;
  }

  std::uint64_t memory(std::size_t i) const {
    return list_.memories.empty() ? 0 : list_.memories[machines_[i].memory].size;
  }
  // Whether `larger` has no less of anything.
  bool covers(std::size_t larger, std::size_t i) const {
    const PricedMachine &a = machines_[larger], &b = machines_[i];
    return a.gpu == b.gpu && a.drive == b.drive && a.drives >= b.drives &&
           memory(larger) >= memory(i);
  }
  bool exceeded(std::size_t i) const {
    for (std::size_t other = 0; other < machines_.size(); ++other) {
      if (other != i && covers(other, i) && (!covers(i, other) || other < i)) return true;
    }
    return false;
  }
  bool ruled_out(std::size_t i) const {
    return std::any_of(points_.begin(), points_.end(), [&](const auto& known) {
      const auto& [other, point] = known;
      return other != i && !point.left_out && covers(other, i) &&
             point.tokens_per_second < ruled_out_below * answer_.wish.tokens_per_second;
    });
  }

  void find_fastest_below() {
    const auto& enough = answer_.fast_enough;
    for (const auto& [i, point] : points_) {
      if (!point.fits || reaches(point)) continue;
      if (!enough.empty() && point.machine.price >= enough.front().machine.price) continue;
      if (!answer_.fastest_below ||
          point.tokens_per_second > answer_.fastest_below->tokens_per_second)
        answer_.fastest_below = point;
    }
  }

  // By memory alone, in any micro-batch.
  void find_shortage() {
    double least = 0;
    for (const auto& [i, point] : points_) {
      if (point.left_out) continue;
      Problem problem = on(machines_[i]);
      std::vector<std::int64_t> sizes = {problem.workload.micro_batch};
      if (planner_.choose_micro_batch)
        sizes = micro_batch_candidates(problem.workload.rank_batch());
      planner_.begin();
      for (const std::int64_t size : sizes) {
        problem.workload.micro_batch = size;
        const std::optional<Fit> fit = planner_.fit(problem);
        if (!fit || fit->need.fits()) continue;
        if (answer_.shortage && fit->need.overshoot() >= least) continue;
        least = fit->need.overshoot();
        answer_.shortage = {point.name, full_tiers(fit->need)};
      }
    }
  }

  const ProblemRequest& request_;
  const Planner& planner_;
  const PriceList& list_;
  const std::function<void(const std::string&)>& say_;
  const std::vector<PricedMachine> machines_;  // the cheapest first
  std::map<std::size_t, MachinePoint> points_;
  CheapestMachine answer_;
};

}  // namespace

CheapestMachine cheapest_machine(const ProblemRequest& request, const Planner& planner,
                                 const PriceList& list, const MachineWish& wish,
                                 const std::function<void(const std::string&)>& say) {
  return MachineSearch(request, planner, list, wish, say).search();
}

}  // namespace spillway
