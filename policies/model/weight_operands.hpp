// A layer's backward in two passes, and what the first one leaves for the second: the gradient of
// the layer's input, which the layer below waits for, and then that of its weights, which waits for
// nothing but memory (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024).
//
// The gradient of the weights is made of activations that the layer's matrices and norms have read,
// and of the gradients of what these have made. Both lie in one buffer: first the activations that
// forward did not save, as saved_layout() has them, then the gradients, each (b, T, width).
//
// The kernels of the CUDA backend that make the gradient of the input also take the sums over
// tokens that are the gradients of biases and norms. So there the first pass makes these sums, and
// keeps only what the matrices' gradients are made of. Behind the gradients lie the sums in fp32,
// a row for each kernel batch (Workload::sequences_at_once) of the layer's biases and norms, in the
// order of its unit; the second pass adds them to the gradient of the unit, one row after the
// other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "policies/model/saved.hpp"

namespace spillway {

// The gradients, in the order of the buffer: of the layer's output; of the feed-forward's first
// product; of the second norm; of the sum before it; of queries, keys and values, as the product
// makes them; of the first norm; and with qk_norm of the normed queries and keys.
enum class OutputGradient : std::uint8_t { output, up, norm2, residual, qkv, norm1, query_key };
inline constexpr std::size_t output_gradient_count = 7;

// Columns per token of each; 0: the model has none, or the backend keeps none.
std::array<std::int64_t, output_gradient_count> output_gradient_widths(const Problem& problem);

// The activations that the gradient of the weights is made of, beside the layer's input.
SavedMask activations_of_weights(const Problem& problem);
// Those of them that the first pass keeps, where `available` were saved.
inline SavedMask kept_for_weights(const Problem& problem, SavedMask available) {
  return static_cast<SavedMask>(activations_of_weights(problem) & ~available);
}

// Bytes of an element of the gradients: the CPU backend keeps them in fp32, the CUDA backend in the
// precision of activations.
std::uint64_t output_gradient_element_bytes(const Problem& problem);
// Elements of a layer's biases and norms: columns of the sums that the CUDA backend keeps.
std::int64_t vector_elements(const ModelSpec& model);
// Bytes of the buffer, for one micro-batch.
std::uint64_t weight_operand_bytes(const Problem& problem, SavedMask available);

}  // namespace spillway
