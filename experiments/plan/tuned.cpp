#include "experiments/plan/tuned.hpp"

#include <thread>

#include "experiments/tune/plan_space.hpp"
#include "experiments/tune/tune.hpp"
#include "policies/common/policy.hpp"
#include "policies/spillway/spillway.hpp"

namespace spillway {

bool is_tuned(const std::string& policy) { return canonical_policy(policy) == "spillway"; }

Evaluation evaluate_tuned(const Problem& problem, bool choose_micro_batch, int steps,
                          const EvaluateOne& evaluate_one,
                          const std::function<void(Problem&)>& settle, const Allows& allows) {
  Pricer pricer(problem, std::thread::hardware_concurrency(), settle, nullptr, allows);
  SearchLimits limits;
  limits.effort = quick_effort;
  limits.tasks = quick_tasks;
  limits.published_tasks = 4 * most_tasks_tried;
  limits.choose_micro_batch = choose_micro_batch;
  PlanSearch search(pricer, limits, bounds_of(problem, choose_micro_batch));
  search.run();
  const auto best = search.best();
  const auto by_default = [&] {
    return choose_micro_batch ? evaluate_best_micro_batch(problem, "spillway", steps, evaluate_one)
                              : evaluate_one(problem, "spillway", steps);
  };
  if (!best) return by_default();
  Problem chosen = problem;
  chosen.workload.micro_batch = best->first.micro_batch;
  Evaluation found = evaluate_one(chosen, best->second.settled, steps);
  // The search knows nothing of what else is to fit, copies for commits.
  if (!found.result) return by_default();
  if (best->second.settled.rfind("spillway", 0) == 0) return found;
  // Another policy's plan, by its own name for it.
  const Plan plan = plan_of(pricer.problem_with(best->first.micro_batch), best->second.settled);
  Evaluation same = evaluate_one(chosen, spillway_policy(plan), steps);
  const bool is_as_good =
      same.result && found.result && same.result->step_seconds <= found.result->step_seconds;
  return is_as_good ? std::move(same) : std::move(found);
}

}  // namespace spillway
