#include "experiments/plan/rank_problem.hpp"

#include "policies/machine/rank_share.hpp"

namespace spillway {

void use_all_gpus(const Machine& machine, WorkloadTexts& given) {
  const bool in_stages = given.contains("pipeline") && given.at("pipeline") != "1";
  if (const std::int64_t gpus = machine.cluster.count(); gpus > 1 && !in_stages)
    given.emplace("ranks", std::to_string(gpus));
}

void take_rank_share(Problem& problem) {
  problem.validate();
  problem.machine = rank_share(problem.machine, problem.gpus_of_node());
}

}  // namespace spillway
