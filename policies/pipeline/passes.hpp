// Pipeline parallelism by stages: which passes each GPU runs, and in which order.
//
// A model's layers are cut into stages, which follow each other. A stage lies on a GPU of the
// pipeline; a GPU has one stage, or one of each of several chunks of the model. A pass is the work
// of one stage on one micro-batch. The forward pass of stage s needs the output of stage s - 1, its
// backward pass the gradient from stage s + 1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

enum class PassKind : std::uint8_t {
  forward,
  backward,  // gradients of the stage's input and of its weights
  // In place of `backward`: the gradient of the input alone, which the stage before waits for, and
  // that of the weights, which nobody waits for (Qi et al., "Zero Bubble Pipeline Parallelism",
  // ICLR 2024).
  input_gradient,
  weight_gradient,
  // The forward pass again, for what backward needs and nobody has kept. Without such a pass it is
  // part of backward.
  recompute
};
inline constexpr int pass_kind_count = 5;
const char* to_string(PassKind kind);  // "forward", "input gradient"

struct Pass {
  PassKind kind = PassKind::forward;
  std::int32_t stage = 0;
  std::int32_t micro_batch = 0;
  // Of a backward pass: it finds what it needs, kept by the forward pass right before it or
  // recomputed by a pass of its own. Else it recomputes what the stage does not keep.
  bool finds_all = false;
  bool operator==(const Pass&) const = default;
};

struct PipelineShape {
  int gpus = 1;    // of one pipeline
  int chunks = 1;  // stages of a GPU
  int micro_batches = 1;
  // The chunks go down and up again: the first GPU has the first stage and the last one. Else each
  // chunk begins at the first GPU.
  bool turns = false;

  int stages() const { return gpus * chunks; }
  int gpu_of(int stage) const {
    const int chunk = stage / gpus, place = stage % gpus;
    return turns && chunk % 2 == 1 ? gpus - 1 - place : place;
  }
  bool operator==(const PipelineShape&) const = default;
};

// By GPU: its passes, one after the other.
using PassOrder = std::vector<std::vector<Pass>>;

// Throws InputError unless every pass of the shape is there once, on the GPU that has its stage, as
// `backward` or as its two parts, and the GPUs can run them without waiting for each other for
// ever.
void check_order(const PipelineShape& shape, const PassOrder& order);

// By GPU: the most micro-batches of a stage whose activations it holds at once, from the beginning
// of their forward pass to the end of the backward pass that needs them last.
std::vector<int> most_held(const PassOrder& order);

// By GPU, where forward passes keep the inputs of layers alone: the most micro-batches of a stage
// whose other activations are there at once. A backward pass in one recomputes them layer by layer,
// and needs those of one layer; one in two parts has all of the stage until the gradient of the
// weights is done, and so has one that finds what was recomputed, or kept, before it.
std::vector<int> most_recomputed(const PassOrder& order);

}  // namespace spillway
