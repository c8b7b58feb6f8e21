#include "experiments/why/why.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/plan/tuned.hpp"
#include "experiments/plan/wear.hpp"
#include "policies/schedule/fit_margin.hpp"

namespace spillway {

namespace {

// The policy as asked for where that is a plan by itself: `auto` is not, nor is a search.
PlanEnd end_of(const AskedPlan& asked) {
  const Schedule& schedule = asked.plan.evaluation.schedule;
  const bool stands_for_another = asked.policy == "auto" || is_tuned(asked.policy);
  return {stands_for_another ? schedule.policy() : canonical_policy(asked.policy),
          schedule.policy(), schedule.problem()};
}

PlanTime time_of(const Problem& problem, const PlanState& state, int steps,
                 const EvaluateOne& evaluate_one, bool durable) {
  Problem between = problem;
  between.workload.micro_batch = state.micro_batch;
  PlanTime time;
  try {
    const Evaluation evaluation = evaluate_one(between, state.policy, steps);
    time.tasks = evaluation.tasks;
    const Schedule& schedule = evaluation.schedule;
    if (!evaluation.result) {
      time.why_not = to_text(fit_margin(tier_uses(schedule)));
    } else if (!fits_drives(store_bytes(schedule, durable), schedule.problem().machine)) {
      time.why_not = "with durability the store does not fit the drives";
    } else {
      time.seconds = evaluation.result->step_seconds;
      time.bound_by = evaluation.result->bound_by;
    }
  } catch (const InputError& error) {
    time.why_not = error.what();
    if (!error.hint().empty()) time.why_not += std::string("; ") + error.hint();
  }
  return time;
}

// Empty where a policy takes what the plan does that is to stand for it: an order of work that is
// its own is in no plan.
std::string why_no_plan(const AskedPlan& asked, const std::string& policy,
                        const PlanTime& as_plan) {
  constexpr double most_beside = 0.05;
  const double seconds = asked.plan.evaluation.result->step_seconds;
  if (!as_plan.seconds || std::abs(*as_plan.seconds - seconds) <= most_beside * seconds)
    return as_plan.why_not;
  return fmt::format("{} takes {} a step, and {} as a plan of policy {}", asked.policy,
                     format_seconds(seconds), format_seconds(*as_plan.seconds), policy);
}

}  // namespace

Why explain_difference(const Problem& problem, const AskedPlan& a, const AskedPlan& b,
                       const EvaluateOne& evaluate_one, bool durable,
                       const AblationOptions& options) {
  PlanSettings settings(end_of(a), end_of(b));
  const int steps = a.plan.evaluation.schedule.steps();
  const auto time = [&](const PlanState& state) {
    return time_of(problem, state, steps, evaluate_one, durable);
  };
  Ablation ablation;
  for (const bool first : {true, false}) {
    if (settings.all().empty() || !ablation.why_not.empty()) continue;
    const PlanSettings::Changed changed(settings.all().size(), !first);
    ablation.why_not = why_no_plan(first ? a : b, settings.policy(), time(settings.with(changed)));
  }
  if (ablation.why_not.empty()) ablation = ablate(settings, time, options);
  PlanProfile of_a = profile_of(a.plan), of_b = profile_of(b.plan);
  auto path = critical_differences(of_a.explanation, of_b.explanation);
  auto stalls = stall_differences(of_a.explanation, of_b.explanation);
  return {std::move(of_a),   std::move(of_b),     std::move(path),
          std::move(stalls), std::move(settings), std::move(ablation)};
}

}  // namespace spillway
