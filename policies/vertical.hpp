// The vertical pass: all micro-batches of a layer, then the next layer. Parameters are loaded once
// per pass and gradients accumulate on the GPU; the price is that activations between layers, and
// their gradients, of all micro-batches are moved.
//
// In snake order the last micro-batch of a layer is the first of the next, and need not move. The
// last layer is run once, forward and backward fused, and never recomputed. A fraction `alpha` of
// every layer's update is applied in the next step's forward, two layers ahead of its use: every
// weight is current when used.
#pragma once

#include <optional>
#include <vector>

#include "policies/model_state.hpp"
#include "policies/program.hpp"

namespace spillway {

struct VerticalOptions {
  double alpha = 0;               // delayed fraction of each block's elements, the first ones
  bool snake = true;              // odd layers run their micro-batches in descending order
  bool recomputes_output = true;  // recomputation re-runs the whole block
  double checkpoints_ssd = 0;     // fraction of the inner micro-batches' checkpoints on the ssd
};

// What is left of a step's gradient for the next step's forward.
struct DelayedGradient {
  Slice gradient;  // host, the block's elements [0, alpha * P)
  int step = 0;    // whose gradient it is
};

// Emits one step: forward, backward and the optimizer, except for what it leaves in `delayed` (by
// block), which holds what the step before left and is applied in this step's forward.
void emit_vertical_step(Program& program, ModelState& state, const VerticalOptions& options,
                        int step, std::vector<std::optional<DelayedGradient>>& delayed);

}  // namespace spillway
