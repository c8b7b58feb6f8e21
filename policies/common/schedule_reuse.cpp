#include "policies/common/schedule_reuse.hpp"

namespace spillway {

namespace {

// Whether problems differ in nothing but rates of the machine.
bool are_as_large(const Problem& one, const Problem& other) {
  return one.model == other.model && one.workload == other.workload &&
         one.framework == other.framework && one.frozen_in_place == other.frozen_in_place &&
         one.backend() == other.backend() && capacities(one.machine) == capacities(other.machine);
}

}  // namespace

Schedule ScheduleReuse::build(const Problem& problem, const std::string& policy, int steps) {
  const ParsedPolicy parsed = parse_policy(policy);
  require_buildable(problem, steps);
  policy_of(parsed)->check(problem);
  Settler settler(problem, parsed, steps);
  if (last_ && last_->policy == policy && last_->schedule.steps() == steps &&
      are_as_large(problem, last_->schedule.problem()) && settler.is_on(last_->grounds))
    return last_->schedule.of(problem);
  last_.reset();
  Schedule schedule = settler.build();
  if (std::optional<Settler::Grounds> grounds = settler.grounds())
    last_ = Built{schedule, policy, *std::move(grounds)};
  return schedule;
}

}  // namespace spillway
