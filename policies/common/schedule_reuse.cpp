#include "policies/common/schedule_reuse.hpp"

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "policies/cost/costs.hpp"

namespace spillway {

namespace {

// What groups of ranks follow from, and the way that they take to each other.
bool are_clusters_alike(const Problem& one, const Problem& other) {
  const Machine::Cluster &a = one.machine.cluster, &b = other.machine.cluster;
  return one.rank == other.rank && a.gpus == b.gpus && a.nodes == b.nodes &&
         a.leaf_nodes == b.leaf_nodes && a.sharing == b.sharing &&
         (a.nvlink > 0) == (b.nvlink > 0) && (a.nic > 0) == (b.nic > 0);
}

}  // namespace

// Whether they differ in nothing but rates of the machine, and drives.
bool ScheduleReuse::is_alike(const Origin& one, const Origin& other) {
  const Problem &a = one.problem, &b = other.problem;
  return one.policy == other.policy && one.steps == other.steps && a.model == b.model &&
         a.workload == b.workload && a.framework == b.framework &&
         a.frozen_in_place == b.frozen_in_place && a.backend() == b.backend() &&
         a.machine.gpu.memory == b.machine.gpu.memory &&
         a.machine.host.memory == b.machine.host.memory && are_clusters_alike(a, b);
}

// Sweeps go through the values of an axis again and again: a few schedules are kept, of a few
// hundred megabytes.
void ScheduleReuse::keep_few() {
  constexpr std::size_t most = 8, most_tasks = 1'000'000;
  std::size_t tasks = 0, kept = 0;
  for (const Built& one : built_) {
    tasks += one.schedule.tasks().size();
    if (kept > 0 && tasks > most_tasks) break;
    ++kept;
  }
  built_.erase(built_.begin() + static_cast<std::ptrdiff_t>(std::min(kept, most)), built_.end());
  if (found_.size() > most) found_.pop_back();
}

Schedule ScheduleReuse::build(const Problem& of_all, const std::string& policy, int steps) {
  const ParsedPolicy parsed = parse_policy(policy);
  require_buildable(of_all, steps);
  const std::unique_ptr<Policy> object = policy_of(parsed);
  object->check(of_all);
  const Problem problem = of_all.of_stage(object->chunks());
  Settler settler(problem, parsed, steps);
  Origin origin{problem, policy, steps};
  for (const Built& one : built_) {
    if (is_alike(origin, one.origin) && one.schedule.suits(problem.machine) &&
        settler.is_on(one.grounds))
      return one.schedule.of(problem);
  }
  Schedule schedule = settler.build();
  if (std::optional<Settler::Grounds> grounds = settler.grounds())
    built_.push_front({std::move(origin), *std::move(grounds), schedule});
  keep_few();
  return schedule;
}

std::optional<Miniatures> ScheduleReuse::miniatures(const Problem& problem,
                                                    const std::string& policy, int steps) {
  const ParsedPolicy parsed = parse_policy(policy);
  problem.validate();
  const std::unique_ptr<Policy> object = policy_of(parsed);
  object->check(problem);
  Found found{{problem, policy, steps}, to_text(object->plan(problem, Costs(problem))), {}, {}, {}};
  const auto known = std::find_if(found_.begin(), found_.end(), [&](const Found& one) {
    return one.grounds && one.plan == found.plan && is_alike(found.origin, one.origin) &&
           Settler(problem, parsed, steps).is_on(*one.grounds);
  });
  if (known != found_.end()) {
    std::rotate(found_.begin(), known, known + 1);
    return found_.front().miniatures;
  }
  found.miniatures = find_miniatures(problem, parsed, steps, &found.grounds);
  found_.push_front(std::move(found));
  keep_few();
  return found_.front().miniatures;
}

Schedule ScheduleReuse::miniature(const Problem& problem, std::int64_t layers) {
  SPILLWAY_ASSERT(!found_.empty() && found_.front().miniatures);
  Found& of = found_.front();
  const auto known = of.built.find(layers);
  if (known != of.built.end() && known->second.suits(problem.machine)) {
    Problem small = problem;
    small.model.layers = layers;
    return known->second.of(small);
  }
  Schedule built = build_miniature(problem, *of.miniatures, layers, of.origin.steps);
  of.built.insert_or_assign(layers, built);
  return built;
}

}  // namespace spillway
