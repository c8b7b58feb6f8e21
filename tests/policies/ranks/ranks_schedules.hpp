// Schedules of all ranks of a problem.
#pragma once

#include <string>
#include <vector>

#include "policies/common/policy.hpp"
#include "policies/cost/costs.hpp"
#include "policies/movement/plan.hpp"
#include "policies/workload/problem.hpp"
#include "tests/policies/ranks/ranks_dataflow.hpp"

namespace spillway::test {

// The problem with as many micro-batches on each of so many ranks, and units of so many cells of
// the element grid that each rank has one.
inline Problem among(Problem problem, const Ranks& ranks) {
  problem.machine.cluster.gpus = ranks.inside;
  problem.machine.cluster.nodes = ranks.across;
  problem.workload.ranks = ranks.size();
  problem.workload.batch *= ranks.size();
  problem.model.vocabulary *= ranks.size();
  if (ranks.size() > 7) {
    problem.model.hidden *= 2;
    problem.model.ffn *= 2;
  }
  return problem;
}

inline Problem of_rank(Problem problem, int rank) {
  problem.rank = rank;
  return problem;
}

inline std::vector<Schedule> schedules_of_ranks(const Problem& problem, const std::string& policy,
                                                int steps) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < problem.ranks().size(); ++rank)
    schedules.push_back(build_schedule(of_rank(problem, rank), policy, steps));
  return schedules;
}

inline StatedShards stated_shards(const Problem& problem, const Plan& plan) {
  const auto or_else = [](const Mesh& mesh, const Mesh& usual) {
    return mesh.size() > 0 ? mesh : usual;
  };
  return {or_else(plan.shards.gradients, Mesh{}),
          or_else(plan.shards.optimizer_state, problem.ranks()), plan.shards.all_reduce};
}

}  // namespace spillway::test
