// Why one plan is faster than another: where their tensors are, what their lanes do, what their
// steps are made of, and what each setting in which they differ gains.
#pragma once

#include <string>
#include <vector>

#include "experiments/plan/evaluate.hpp"
#include "experiments/why/ablation.hpp"
#include "experiments/why/differences.hpp"
#include "experiments/why/plan_profile.hpp"

namespace spillway {

// A plan that is asked about.
struct AskedPlan {
  std::string policy;  // as asked for: options may be left open
  Candidate plan;      // fits
};

struct Why {
  PlanProfile a, b;
  std::vector<TimeDifference> critical_path, stalls;
  PlanSettings settings;
  Ablation ablation;

  double a_seconds() const { return a.plan.evaluation.result->step_seconds; }
  double b_seconds() const { return b.plan.evaluation.result->step_seconds; }
  // What a takes beyond its plan written in `settings`, and what the plan of b written so takes
  // beyond b. Both are 0 but for policies with an order of work that no plan says. With these, the
  // gains of the steps add up to a_seconds() - b_seconds().
  double residual_of_a() const { return a_seconds() - ablation.a_seconds; }
  double residual_of_b() const { return ablation.b_seconds - b_seconds(); }
};

// Both plans are of `problem`, but for its micro-batch, by `evaluate_one`. With `durable`, plans
// between the two have to leave room for copies on the drives. Throws InputError for names in
// `options` that are none of the settings.
Why explain_difference(const Problem& problem, const AskedPlan& a, const AskedPlan& b,
                       const EvaluateOne& evaluate_one, bool durable,
                       const AblationOptions& options);

}  // namespace spillway
