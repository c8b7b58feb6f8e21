// Plans that keep everything on the GPU, and the option of recomputation that goes with them.
#pragma once

#include "policies/common/policy.hpp"
#include "policies/movement/plan.hpp"

namespace spillway {

struct ResidentOptions {
  Policy& policy;
  enum class Recompute : std::uint8_t { off, needed, full };
  Option<Recompute> recompute = policy.option(
      "recompute", "off",
      Choice<Recompute>{
          {"off", Recompute::off}, {"needed", Recompute::needed}, {"full", Recompute::full}},
      {"needed", "full"},
      "off: keep all activations | needed: keep one checkpoint per block, recompute what "
      "backward needs | full: recompute whole layers");

  Plan plan(const Problem& problem) const {
    Plan plan;
    plan.order = {.row = 1, .updates = UpdateOrder::ascending};
    plan.checkpoints.rest = Share{.gpu = 1};
    plan.parameters.rest = plan.optimizer_state.rest = plan.checkpoints.rest;
    plan.saved.recomputes_output = recompute == Recompute::full;
    if (recompute == Recompute::off) plan.saved.saves = saved_all(problem.model);
    return plan;
  }
};

}  // namespace spillway
