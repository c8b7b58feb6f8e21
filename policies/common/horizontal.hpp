// The horizontal pass: one micro-batch runs forward and backward through all layers, then the next.
// Shared by every policy but the vertical ones; what differs between them is said by the options
// and by what they do with a finished gradient.
#pragma once

#include <functional>
#include <optional>

#include "policies/common/activation_store.hpp"
#include "policies/common/model_state.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

// Of the activations: what is kept and where it waits for backward, by ActivationOptions.
struct HorizontalOptions : ActivationOptions {
  bool recomputes_output = true;  // where a block saves nothing, recomputation re-runs all of it
  std::size_t host_ahead = 2;  // units of parameters read from the ssd ahead of the copy to the GPU
  std::size_t gpu_ahead = 1;   // units of parameters copied to the GPU ahead of compute
  std::optional<std::size_t> backward_gpu_ahead;  // the same in backward; empty: gpu_ahead
  Tier gradients =
      Tier::gpu;  // gpu: accumulators stay there; host: they leave after each micro-batch
  // host gradients: the accumulator of a unit in host memory, written by the first micro-batch.
  std::function<Slice(int unit)> host_accumulator;
  // May be empty. Called in order of completion, right after the tasks that bring a unit's complete
  // gradient to `gradients`' tier: blocks L-1 .. 0, then the embedding (whose head_gradient is
  // valid). It may move the gradient, but not apply it yet.
  std::function<void(int unit, Slice gradient, Slice head_gradient)> complete;
};

// Called in the same order as soon as updates that apply a unit's gradient may be emitted: when it
// is complete or, where updates wait for the norm of the whole gradient, once all of them are.
using GradientReady = std::function<void(int unit, Slice gradient, Slice head_gradient)>;

// Emits the forward and backward of all micro-batches of one step.
void emit_horizontal_pass(Program& program, ModelState& state, int step,
                          const HorizontalOptions& options, const GradientReady& ready);

}  // namespace spillway
