// Activations that wait from forward to backward: the blocks' inputs (checkpoints) and the tensors
// that forward saves inside blocks, of the running micro-batch.
//
// They stay in GPU memory, or leave it tensor by tensor: to host memory, and the earliest produced,
// which are needed last, further on to the ssd (Ratel, ICDE 2025, section IV-D: what does not fit
// into host memory overflows; a tensor goes as a whole). A block's input leaves under its own
// forward; what a block saves, under the next block's. The last block's activations are needed at
// once and stay.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policies/common/look_ahead.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

struct ActivationOptions {
  Tier checkpoints = Tier::gpu;     // gpu or host: where all of them wait
  double checkpoints_on_ssd = 0;    // with host: this fraction of their bytes goes on to the ssd
  std::vector<std::uint8_t> saves;  // by block: mask of SavedTensor kept; empty: nothing anywhere
  // With host: GPU memory for what a block saves, used by the blocks in turn (saved_places). Empty:
  // a buffer for each occasion, which leaves gaps where blocks save different amounts.
  std::vector<Slice> places;
  std::size_t activations_host_ahead = 2;  // blocks whose activations are read from the ssd ahead
  std::size_t activations_gpu_ahead = 1;   // blocks whose activations are copied to the GPU ahead
};

// Places for these options: one in use and those ahead, at least two. Before the first step.
std::vector<Slice> saved_places(Program& program, const ActivationOptions& options);

class ActivationStore {
 public:
  ActivationStore(Program& program, const ActivationOptions& options);

  // Starts a micro-batch.
  void begin_forward(int micro_batch);
  // Before the forward of block `layer`: its input is to be kept.
  void keep_input(int layer, Slice input);
  // What the forward of block `layer` saves, and where it shall write it (invalid: nothing).
  std::uint8_t saves(int layer) const;
  Slice saved_buffer(int layer);
  // After the forward of block `layer`.
  void after_forward(int layer);

  // A block's activations in GPU memory; for each block once, from the last to the first.
  struct OnGpu {
    Slice input;
    Slice saved;  // laid out as forward wrote it
  };
  void begin_backward();
  OnGpu fetch(int layer);

 private:
  // Activations of a block: item 0 is its input, the others the tensors it saves, in order.
  struct Block {
    OnGpu gpu;                // until they leave; for good if they do not
    std::vector<Slice> away;  // by item, in host or ssd memory
    std::size_t on_ssd = 0;   // so many of the first items go there
  };

  bool stays(int layer) const;
  std::vector<SavedLayout> layout(int layer) const;
  void plan_overflow();
  Slice place(int layer);
  Slice put_away(int layer, Slice gpu, std::size_t item);
  std::vector<Slice> to_host(int layer);
  OnGpu to_gpu(int layer, const std::vector<Slice>& host);
  Block& block(int layer) { return blocks_[static_cast<std::size_t>(layer)]; }

  Program& program_;
  const ActivationOptions& options_;
  int layers_;
  int micro_batch_ = 0;
  std::vector<Block> blocks_;
  std::optional<LookAhead<std::vector<Slice>>> host_;  // by place in backward
  std::optional<LookAhead<OnGpu>> gpu_;
};

}  // namespace spillway
