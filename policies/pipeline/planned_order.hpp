// List scheduling of a pipeline: the order of passes that follows from their times.
//
// Every GPU runs, as soon as it is free, the pass that can begin first; of those that can begin at
// once the one that the rule prefers. It looks a little ahead, too: a pass that would hold up a
// better one that is about to come is left for later. The times of what is still to come on other
// GPUs are not looked at.
#pragma once

#include <vector>

#include "policies/pipeline/pipeline_times.hpp"

namespace spillway {

struct PlanningRule {
  bool splits_backward = false;   // the gradients of input and weights are passes of their own
  bool recomputes_apart = false;  // a pass of its own, where the GPU would wait otherwise
  // Of a GPU: micro-batches whose activations it may hold at once, per chunk.
  int most_held = 1;
  // A forward pass waits for a backward pass that can begin before this share of it is over; a
  // weight gradient for either. 0: no GPU ever waits where it could run something.
  double forward_waits = 0, weights_wait = 0;
};

struct PlannedOrders {
  std::vector<PassOrder> orders;  // by pipeline
  std::int64_t end_ns = 0;        // of the last pass, by the planner's own account
};

// Orders of `times.pipelines` pipelines that share the links. Throws InputError where `most_held`
// is too little for the chunks to go on.
PlannedOrders planned_orders(const PipelineShape& shape, const PipelineTimes& times,
                             const PlanningRule& rule);

}  // namespace spillway
