// The policy `spillway` without settings: wherever experiments evaluate it, it is the plan that a
// short search finds, the same one everywhere.
#pragma once

#include <functional>
#include <string>

#include "experiments/plan/evaluate.hpp"

namespace spillway {

// Whether a policy is to be searched for.
bool is_tuned(const std::string& policy);

// The plan, evaluated. Where none that was tried fits: the one that lacks least memory, without a
// result. `settle` makes of a problem, whose micro-batch is set, what
// evaluate_one builds; empty: nothing.
Evaluation evaluate_tuned(const Problem& problem, bool choose_micro_batch, int steps,
                          const EvaluateOne& evaluate_one,
                          const std::function<void(Problem&)>& settle = {},
                          const Allows& allows = {});

}  // namespace spillway
