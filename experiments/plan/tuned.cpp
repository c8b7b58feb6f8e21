#include "experiments/plan/tuned.hpp"

#include <thread>

#include "experiments/plan/fit_trials.hpp"
#include "experiments/tune/plan_space.hpp"
#include "experiments/tune/tune.hpp"
#include "policies/common/policy.hpp"
#include "policies/spillway/spillway.hpp"

namespace spillway {

namespace {

// A step that takes so much longer than the bound is looked at again.
constexpr double worth_another_look = 1.04;

// As much again, of who has looked at plans before.
SearchLimits more_of(SearchLimits limits, const Pricer& pricer) {
  limits.effort += pricer.explored();
  limits.tasks += pricer.tasks();
  return limits;
}

// Where host memory limits, a plan lies between others that do not fit, and no single change leads
// from one that does to it. What is best with a sixth more memory leads there: made to fit, it and
// its neighbours are priced, too.
void look_from_more_memory(Pricer& pricer, const SearchLimits& limits,
                           const std::vector<BoundCase>& bounds, const Trial& best,
                           const std::function<void(Problem&)>& settle, const Allows& allows) {
  Problem there = pricer.problem();
  there.machine.host.memory += there.machine.host.memory / 6;
  Pricer other(there, std::thread::hardware_concurrency(), settle, nullptr, allows);
  SearchLimits more = limits;
  more.effort = limits.effort / 4;
  more.tasks = limits.tasks / 4;
  PlanSearch search_there(other, more, bounds_of(there, limits.choose_micro_batch));
  search_there.run_near(best);
  const auto found = search_there.best();
  if (!found) return;
  PlanSearch search(pricer, more_of(more, pricer), bounds);
  search.run_near({found->first.micro_batch, found->second.settled});
}

}  // namespace

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
  const std::vector<BoundCase> bounds = bounds_of(problem, choose_micro_batch);
  PlanSearch search(pricer, limits, bounds);
  search.run();
  auto best = search.best();
  if (best && !bounds.empty() &&
      best->second.step_seconds > bounds.front().seconds * worth_another_look) {
    look_from_more_memory(pricer, limits, bounds, best->first, settle, allows);
    best = search.best();
  }
  const auto by_default = [&] {
    return choose_micro_batch ? evaluate_best_micro_batch(problem, "spillway", steps, evaluate_one)
                              : evaluate_one(problem, "spillway", steps);
  };
  if (!best) {  // what was spent has brought nothing: once more as much
    PlanSearch again(pricer, more_of(limits, pricer), bounds);
    again.make_room();
    best = again.best();
    if (best) again.run_near({best->first.micro_batch, best->second.settled});
    best = again.best();
  }
  const bool is_found = best.has_value();
  if (!best) {
    Evaluation own = by_default();
    if (own.result) return own;
    best = pricer.nearest();
    const Need need = need_of(own.schedule, false);
    if (!best || need.overshoot() <= pricer.overshoot(best->second)) return own;
  }
  Problem chosen = problem;
  chosen.workload.micro_batch = best->first.micro_batch;
  Evaluation found = evaluate_one(chosen, best->second.settled, steps);
  // The search knows nothing of what else is to fit, copies for commits.
  if (is_found && !found.result) return by_default();
  if (best->second.settled.rfind("spillway", 0) == 0) return found;
  // Another policy's plan, by its own name for it.
  const Plan plan = plan_of(pricer.problem_with(best->first.micro_batch), best->second.settled);
  Evaluation same = evaluate_one(chosen, spillway_policy(plan), steps);
  const bool is_as_good = !is_found || (same.result && found.result &&
                                        same.result->step_seconds <= found.result->step_seconds);
  return is_as_good ? std::move(same) : std::move(found);
}

}  // namespace spillway
