#include "experiments/plan/rank_problem.hpp"

#include "policies/machine/rank_share.hpp"

namespace spillway {

void use_all_gpus(const Machine& machine, WorkloadTexts& given) {
  if (const std::int64_t gpus = machine.cluster.count(); gpus > 1)
    given.emplace("ranks", std::to_string(gpus));
}

void take_rank_share(Problem& problem) {
  problem.validate();
  problem.machine = rank_share(problem.machine, problem.ranks().inside);
}

}  // namespace spillway
