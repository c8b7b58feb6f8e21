#include "experiments/questions/assumptions.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "experiments/plan/write_cache.hpp"

namespace spillway {

namespace {

// Bits of the works that the schedule's tasks do.
std::uint32_t works_of(const Schedule& schedule) {
  const Costs costs(schedule.problem());
  std::uint32_t works = 0;
  for (const Task& task : schedule.tasks()) {
    const TaskCost cost = costs.of(task, schedule.groups());
    works |= std::uint32_t{1} << static_cast<unsigned>(cost.work);
  }
  return works;
}

}  // namespace

double AssumptionEffects::share(const AssumedEffect& effect) const {
  double most = 0;
  for (const std::optional<double>& seconds : {effect.low_step_seconds, effect.high_step_seconds})
    if (seconds) most = std::max(most, std::abs(*seconds / step_seconds - 1));
  return most;
}

std::size_t AssumptionEffects::named() const {
  return static_cast<std::size_t>(
      std::count_if(effects.begin(), effects.end(),
                    [&](const AssumedEffect& one) { return share(one) > worth_naming; }));
}

AssumptionEffects effects_of_assumptions(const Schedule& schedule, const SimulationResult& result,
                                         const std::function<void(const std::string&)>& say) {
  const Machine& machine = schedule.problem().machine;
  const std::vector<Schedule> stages = stages_of(schedule);
  const std::uint32_t works = works_of(schedule);
  Machine slowest = machine, fastest = machine;
  AssumptionEffects all;
  all.step_seconds = result.step_seconds;
  bool any = false;
  const auto seconds_with = [&](const AssumedValue& value,
                                const std::function<void(Machine&)>& set) {
    // What no task does takes no time at either end.
    if (value.works != 0 && (value.works & works) == 0) return result.step_seconds;
    if (say) say("simulating " + value.name() + " at the ends of its range");
    Machine other = machine;
    set(other);
    return simulate_long_run(stages, other).step_seconds;
  };
  for (AssumedValue& value : assumed_values(machine)) {
    AssumedEffect effect{std::move(value), {}, {}};
    if (effect.value.moves_time()) {
      const double low = seconds_with(effect.value, effect.value.set_low),
                   high = seconds_with(effect.value, effect.value.set_high);
      effect.low_step_seconds = low;
      effect.high_step_seconds = high;
      if (low != high) {
        any = true;
        (low > high ? effect.value.set_low : effect.value.set_high)(slowest);
        (low > high ? effect.value.set_high : effect.value.set_low)(fastest);
      }
    }
    all.effects.push_back(std::move(effect));
  }
  std::stable_sort(all.effects.begin(), all.effects.end(),
                   [&](const AssumedEffect& a, const AssumedEffect& b) {
                     if (a.value.moves_time() != b.value.moves_time()) return a.value.moves_time();
                     return all.share(a) > all.share(b);
                   });
  all.slowest_seconds = all.fastest_seconds = result.step_seconds;
  if (any) {
    if (say) say("simulating all assumed values together");
    all.slowest_seconds = simulate_long_run(stages, slowest).step_seconds;
    all.fastest_seconds = simulate_long_run(stages, fastest).step_seconds;
  }
  // A schedule may gain by one value alone what it does not gain beside others.
  for (const AssumedEffect& one : all.effects) {
    for (const auto& seconds : {one.low_step_seconds, one.high_step_seconds}) {
      if (!seconds) continue;
      all.slowest_seconds = std::max(all.slowest_seconds, *seconds);
      all.fastest_seconds = std::min(all.fastest_seconds, *seconds);
    }
  }
  return all;
}

}  // namespace spillway
