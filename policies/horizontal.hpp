// The horizontal pass: one micro-batch runs forward and backward through all layers, then the next.
// Shared by every policy but the vertical ones; what differs between them is said by the options
// and by what they do with a finished gradient.
#pragma once

#include <functional>

#include "policies/model_state.hpp"
#include "policies/program.hpp"

namespace spillway {

struct HorizontalOptions {
  bool saves_activations =
      false;  // keep everything backward needs, on the GPU: nothing is recomputed
  bool recomputes_output = true;  // recomputation re-runs the whole block
  Tier checkpoints = Tier::gpu;   // where the activations between blocks wait for backward
  double checkpoints_on_ssd =
      0;  // with `checkpoints` host: this fraction of the blocks' goes on to the ssd
  std::size_t host_ahead = 2;  // units of parameters read from the ssd ahead of compute
  std::size_t gpu_ahead = 1;   // units of parameters copied to the GPU ahead of compute
  Tier gradients =
      Tier::gpu;  // gpu: accumulators stay there; host: they leave after each micro-batch
  // host gradients: the accumulator of a unit in host memory, written by the first micro-batch.
  std::function<Slice(int unit)> host_accumulator;
};

// Called in order of completion, right after the tasks that bring a unit's complete gradient to
// options.gradients' tier: blocks L-1 .. 0, then the embedding (whose head_gradient is valid).
using GradientReady = std::function<void(int unit, Slice gradient, Slice head_gradient)>;

// Emits the forward and backward of all micro-batches of one step.
void emit_horizontal_pass(Program& program, ModelState& state, int step,
                          const HorizontalOptions& options, const GradientReady& ready);

}  // namespace spillway
