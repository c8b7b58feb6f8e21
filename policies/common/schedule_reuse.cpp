#include "policies/common/schedule_reuse.hpp"

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

// Whether they differ in nothing but rates of the machine.
bool ScheduleReuse::is_alike(const Origin& one, const Origin& other) {
  const Problem &a = one.problem, &b = other.problem;
  return one.policy == other.policy && one.steps == other.steps && a.model == b.model &&
         a.workload == b.workload && a.framework == b.framework &&
         a.frozen_in_place == b.frozen_in_place && a.backend() == b.backend() &&
         capacities(a.machine) == capacities(b.machine) && are_clusters_alike(a, b);
}

Schedule ScheduleReuse::build(const Problem& problem, const std::string& policy, int steps) {
  const ParsedPolicy parsed = parse_policy(policy);
  require_buildable(problem, steps);
  policy_of(parsed)->check(problem);
  Settler settler(problem, parsed, steps);
  Origin origin{problem, policy, steps};
  if (last_ && is_alike(origin, last_->origin) && settler.is_on(last_->grounds))
    return last_->schedule.of(problem);
  last_.reset();
  Schedule schedule = settler.build();
  if (std::optional<Settler::Grounds> grounds = settler.grounds())
    last_ = Built{std::move(origin), *std::move(grounds), schedule};
  return schedule;
}

std::optional<Miniatures> ScheduleReuse::miniatures(const Problem& problem,
                                                    const std::string& policy, int steps) {
  const ParsedPolicy parsed = parse_policy(policy);
  problem.validate();
  const std::unique_ptr<Policy> object = policy_of(parsed);
  object->check(problem);
  Found found{{problem, policy, steps}, to_text(object->plan(problem, Costs(problem))), {}, {}, {}};
  if (found_ && found_->grounds && found_->plan == found.plan &&
      is_alike(found.origin, found_->origin) &&
      Settler(problem, parsed, steps).is_on(*found_->grounds))
    return found_->miniatures;
  found_.reset();
  found.miniatures = find_miniatures(problem, parsed, steps, &found.grounds);
  found_ = std::move(found);
  return found_->miniatures;
}

Schedule ScheduleReuse::miniature(const Problem& problem, std::int64_t layers) {
  SPILLWAY_ASSERT(found_ && found_->miniatures);
  const auto known = found_->built.find(layers);
  if (known != found_->built.end()) {
    Problem small = problem;
    small.model.layers = layers;
    return known->second.of(small);
  }
  const Schedule built =
      build_miniature(problem, *found_->miniatures, layers, found_->origin.steps);
  return found_->built.emplace(layers, built).first->second;
}

}  // namespace spillway
