// The program of a policy: its plan and its order of work, emitted.
#pragma once

#include <optional>

#include "policies/common/parsed_policy.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

// What a program is emitted with, besides its problem and policy.
struct EmitOptions {
  int steps = 1;
  std::optional<RetentionByKind> retention = {};  // instead of the plan's
  Recording recording = Recording::all;
  TierBytes spare{};  // for what retention keeps
  // Of a miniature: the problem whose plan it is, and the memory that its other layers take.
  const Problem* plan_of = nullptr;
  TierBytes others{};
  // Of a training that these steps evaluate: batches whose losses are computed, with its state
  // where the training has it.
  bool evaluates = false;
};

// Of `steps` steps.
OrderOfWork order_of_work(const Problem& problem, const Policy& policy, const Plan& plan, int steps,
                          bool evaluates = false);
// With what the problem's framework adds, which takes a whole program to know.
Program emit(const Problem& problem, const Policy& policy, EmitOptions with);
Program emit(const Problem& problem, const ParsedPolicy& parsed, EmitOptions with);

}  // namespace spillway
