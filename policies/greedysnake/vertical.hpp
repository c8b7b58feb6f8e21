// The vertical pass: all micro-batches of a layer, then the next layer. Parameters are loaded once
// per pass and gradients accumulate on the GPU; the price is that activations between layers, and
// their gradients, of all micro-batches are moved.
//
// In snake order the last micro-batch of a layer is the first of the next, and need not move. The
// last layer is run once, forward and backward fused, and never recomputed. A fraction `alpha` of
// every layer's update is applied in the next step's forward, ahead of its use: every weight is
// current when used. Where updates wait for the norm of the whole gradient, the data flow applies
// all of it there.
//
// Two ways to run it: as a data flow, where only the bytes tasks read and write order them
// (vertical.cpp), and as the authors' program does it, bulk-synchronous (vertical_barriers.cpp).
#pragma once

#include <algorithm>

#include "policies/common/model_state.hpp"
#include "policies/greedysnake/block_states.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

struct VerticalOptions {
  bool snake = true;              // odd layers run their micro-batches in descending order
  bool recomputes_output = true;  // recomputation re-runs the whole block
  double checkpoints_ssd = 0;     // fraction of the inner micro-batches' checkpoints on the ssd
  double gradients_gpu = 0;  // fraction of the micro-batches whose activation gradient stays on the
                             // GPU between layers
};

// In which order a layer runs its micro-batches, and which of them go where between layers.
class VerticalOrder {
 public:
  VerticalOrder(const Problem& problem, const VerticalOptions& options)
      : layers_(static_cast<int>(problem.model.layers)),
        micro_batches_(static_cast<int>(problem.workload.micro_batches())),
        snake_(options.snake),
        on_ssd_(share(options.checkpoints_ssd, micro_batches_ - 2 * checkpoint_margin)),
        on_gpu_(share(options.gradients_gpu, micro_batches_)) {}

  int layers() const { return layers_; }
  int micro_batches() const { return micro_batches_; }
  int micro_batch(int layer, int position) const {
    return snake_ && layer % 2 == 1 ? micro_batches_ - 1 - position : position;
  }
  int position(int layer, int micro_batch) const { return this->micro_batch(layer, micro_batch); }

  // Micro-batches at each end of a layer's order whose checkpoints never go to the SSD: they are
  // still crossing PCIe when the SSD requests of the layer are issued.
  static constexpr int checkpoint_margin = 2;
  // Whether the output that a layer makes at `position` rests on the SSD. The others have a slot
  // each in host memory.
  bool rests_on_ssd(int position) const {
    return position >= checkpoint_margin && position < checkpoint_margin + on_ssd_;
  }
  int slot(int position) const {
    return position < checkpoint_margin ? position : position - on_ssd_;
  }
  int slots() const { return micro_batches_ - on_ssd_; }
  // Those that rest on the SSD are numbered, too.
  int staging_slot(int position) const { return position - checkpoint_margin; }
  int staging_slots() const { return on_ssd_; }

  // Whether a micro-batch's activation gradient stays on the GPU: those in the middle first, as
  // the ones at the ends are handed over there anyway.
  bool stays_on_gpu(int micro_batch) const {
    return (micro_batch + micro_batches_ - 1) % micro_batches_ < on_gpu_;
  }

 private:
  static int share(double fraction, int of) {
    return of <= 0 ? 0 : static_cast<int>(fraction * of + 0.5);
  }
  int layers_, micro_batches_;
  bool snake_;
  int on_ssd_, on_gpu_;
};

// Emits one step: forward, backward and the optimizer, but for the delayed part of the blocks'
// updates, which waits in `blocks` and is applied in the next step's forward. `state` holds the
// embedding.
void emit_vertical_step(Program& program, ModelState& state, BlockStates& blocks,
                        const VerticalOptions& options, int step);

// The same as the authors' program runs it. `blocks` has as many chunks as there are micro-batches,
// and the program one copy lane.
void emit_bulk_synchronous_step(Program& program, ModelState& state, BlockStates& blocks,
                                const VerticalOptions& options, int step);

// Applies what the last step delayed.
void emit_vertical_epilogue(Program& program, BlockStates& blocks);

}  // namespace spillway
