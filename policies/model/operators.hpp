// The operators of a layer, and the FLOPs of compute tasks: a multiply-add counts as two; norms
// and elementwise functions count no FLOPs, but elements that they move through GPU memory.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "policies/model/saved.hpp"

namespace spillway {

// What the kernels of a layer compute in one go. Recomputation runs those of them whose tensors are
// not all available.
struct LayerOperator {
  std::string_view name;
  SavedMask makes = saved_none;  // none: the layer's output
  double flops = 0;
  // What remains of the FLOPs where only the statistics of what it makes are missing: attention's
  // scores.
  double statistics_flops = 0;
  double backward_flops = 0;  // of its backward, without recomputation
  // Columns of what its matrices read, and of what all of them make, side by side; 0: no matrix.
  std::int64_t inputs = 0, outputs = 0;
  // Elements of activations that kernels beside products and attention read and write, of all
  // tokens: norms, GELU or SwiGLU, rotation, sums of biases (docs/cuda.md, What memory bounds). A
  // residual is added inside the product before it.
  double moved = 0, backward_moved = 0;

  bool is_attention() const { return outputs == 0 && flops > 0; }
};

// The operators of a layer's forward, in order, on so many sequences of so many tokens. Each matrix
// of the layer belongs to one of them.
std::vector<LayerOperator> layer_operators(const ModelSpec& model, std::int64_t sequences,
                                           std::int64_t tokens_per_sequence);

// What each operator but the last makes: tensors that are recomputed together.
std::vector<SavedMask> recompute_groups(const ModelSpec& model);

// FLOPs of recomputing what is not `available` before a layer's backward, for one micro-batch. With
// `output` also the layer's output (the last matrix), which nothing needs but which frameworks that
// re-run the whole layer pay for: nothing available and `output` is one whole layer forward.
double recompute_flops(const Problem& problem, SavedMask available, bool output);
// FLOPs of the tasks of one micro-batch: a layer's forward; its backward, with what it recomputes;
// the head, forward and backward.
double forward_flops(const Problem& problem);
double backward_flops(const Problem& problem, SavedMask available, bool output);
// The same of backward in two passes (weight_operands.hpp), of a model without adapters.
double input_gradient_flops(const Problem& problem, SavedMask available, bool output);
double weight_gradient_flops(const Problem& problem);
double head_flops(const Problem& problem);
// FLOPs of a whole step without any recomputation: 3 times the forward of all its micro-batches
// where everything is trained.
double step_flops(const ModelSpec& model, std::int64_t batch, std::int64_t tokens_per_sequence);

// The first layer that has a backward: those before it are frozen, and nothing below them is
// trained.
std::int64_t first_backward_layer(const ModelSpec& model);

// Bytes of GPU memory that the products of adapters read and write in a layer's forward, or in its
// backward without recomputation, of one micro-batch: these are so narrow that bytes, not FLOPs,
// say how long they take. Counts (b, T, in) and (b, T, out) activations of each matrix; a group
// reads its input once.
std::uint64_t adapter_forward_bytes(const Problem& problem);
std::uint64_t adapter_backward_bytes(const Problem& problem);

// Bytes that the embedding's tasks of one micro-batch read and write, of (b, T, C) activations: a
// GPT gathers two rows per token, a llama one; backward adds to as many. Clearing the accumulator
// comes beside.
std::uint64_t embed_forward_bytes(const Problem& problem);
std::uint64_t embed_backward_bytes(const Problem& problem);

}  // namespace spillway
