// What data-parallel policies with everything on the GPU share: what overlaps compute, the order of
// work, recomputation. They differ in who keeps which shard.
#pragma once

#include "policies/common/resident_options.hpp"
#include "policies/movement/meshes.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

struct ShardedOptions {
  explicit ShardedOptions(Policy& of) : policy(of) { of.declare_for_several_ranks(); }

  Policy& policy;
  struct Overlap {
    bool gather = true, reduce = true, spread = true;
    bool operator==(const Overlap&) const = default;
  };
  Option<Overlap> overlap = policy.option(
      "overlap", "gather+reduce+spread",
      Choice<Overlap>{{"gather+reduce+spread", {true, true, true}},
                      {"gather+reduce", {true, true, false}},
                      {"gather+spread", {true, false, true}},
                      {"reduce+spread", {false, true, true}},
                      {"gather", {true, false, false}},
                      {"reduce", {false, true, false}},
                      {"spread", {false, false, true}},
                      {"none", {false, false, false}}},
      {"none"},
      "what goes on while the GPU computes: gather of parameters for the next layer | reduce of "
      "gradients, under backward | spread of updated parameters, under the next forward");
  ResidentOptions resident{policy};

  // `parameters`, `gradients`, `optimizer_state`: who keeps a shard; 0x0 as Plan::shards says.
  Plan plan(const Problem& problem, const Mesh& parameters, const Mesh& gradients,
            const Mesh& optimizer_state) const {
    Plan plan = resident.plan(problem);
    plan.optimizer.own_phase = true;  // after the norm of the gradient, which ends backward
    plan.shards.parameters = parameters;
    plan.shards.gradients = gradients;
    plan.shards.optimizer_state = optimizer_state;
    plan.shards.gather_overlaps = overlap->gather;
    plan.shards.reduce_overlaps = overlap->reduce;
    plan.shards.spread_overlaps = overlap->spread;
    plan.parameters.gpu_ahead = overlap->gather ? 1 : 0;
    return plan;
  }
};

// One micro-batch after the other; then the updates in the order in which forward uses what they
// make, so that it can begin while the rest is spread.
inline void forward_order(Step& step) {
  for (const int m : step.ascending()) {
    for (const int layer : step.upward()) step.forward(layer, m);
    for (const int layer : step.downward()) step.backward(layer, m);
  }
  step.update(step.embedding());
  for (const int layer : step.upward()) step.update(layer);
  if (step.head() != step.embedding()) step.update(step.head());
}

// All GPUs of a node, or the mesh that an option gives.
inline Mesh or_node(const Mesh& given, const Problem& problem) {
  return given.size() > 0 ? given : Mesh{problem.ranks().inside, 1};
}

}  // namespace spillway
