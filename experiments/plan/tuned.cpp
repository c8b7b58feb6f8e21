#include "experiments/plan/tuned.hpp"

#include <thread>

#include "experiments/tune/tune.hpp"
#include "policies/common/policy.hpp"

namespace spillway {

bool is_tuned(const std::string& policy) { return canonical_policy(policy) == "spillway"; }

Evaluation evaluate_tuned(Problem problem, bool choose_micro_batch, int steps,
                          const EvaluateOne& evaluate_one,
                          const std::function<void(Problem&)>& settle) {
  Pricer pricer(problem, std::thread::hardware_concurrency(), settle);
  SearchLimits limits;
  limits.effort = quick_effort;
  limits.tasks = quick_tasks;
  limits.choose_micro_batch = choose_micro_batch;
  PlanSearch search(pricer, limits, bounds_of(problem, choose_micro_batch));
  search.run();
  const auto best = search.best();
  if (!best) {
    return choose_micro_batch ? evaluate_best_micro_batch(problem, "spillway", steps, evaluate_one)
                              : evaluate_one(problem, "spillway", steps);
  }
  problem.workload.micro_batch = best->first.micro_batch;
  return evaluate_one(problem, best->second.settled, steps);
}

}  // namespace spillway
