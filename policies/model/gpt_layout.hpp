// Where each tensor of a unit lies inside its flat buffers, and how large the buffers are.
//
// The model is a list of units: layers 0 .. L-1, and unit L, the embedding (token table, position
// table, final norm; the head is tied to the token table). A unit's parameters, gradient and
// optimizer state are flat arrays of elements in the order listed here ([out, in] matrices, as in
// llm.c), padded to `element_alignment` so that any cut on that grid is 4096-byte aligned in 16-bit
// and in 32-bit form.
//
// Numbers belong to the workload, not to a policy: every compute task of the CPU backend works
// sequence by sequence, so losses do not depend on the micro-batch size either. A compute task of
// the CUDA backend works on one kernel batch (Workload::sequences_at_once) after another, each of
// which is one long matrix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policies/workload/problem.hpp"

namespace spillway {

inline constexpr std::int64_t element_alignment = 2048;  // elements
inline constexpr std::uint64_t buffer_alignment = 4096;  // bytes, every buffer in every tier

struct TensorLayout {
  std::string name;  // Hugging Face GPT-2 names without the layer prefix, e.g. "attn.c_attn.weight"
  std::int64_t rows = 0;     // out features, or 1
  std::int64_t columns = 0;  // in features, or the vector length
  std::int64_t offset = 0;   // first element in the flat unit
  bool decay = false;        // weight decay applies (matrices and tables, not norms and biases)
};

// Tensors of one layer / of the embedding unit, in flat order.
std::vector<TensorLayout> layer_layout(const ModelSpec& model);
std::vector<TensorLayout> embedding_layout(const ModelSpec& model);

// Elements of unit `unit` (0 .. L), padded to element_alignment.
std::int64_t unit_elements(const ModelSpec& model, std::int64_t unit);

// "layer 3", or "the embedding".
std::string unit_name(const ModelSpec& model, std::int64_t unit);

// The activations inside one layer that backward needs besides the layer's input.
enum SavedTensor : std::uint8_t {
  saved_ln1 = 1 << 0,        // (T, C)
  saved_qkv = 1 << 1,        // (T, 3C)
  saved_attention = 1 << 2,  // (T, C)   attention output before projection
  saved_residual = 1 << 3,   // (T, C)   input + projection
  saved_ln2 = 1 << 4,        // (T, C)
  saved_fc = 1 << 5,         // (T, 4C)  before GELU
  saved_gelu = 1 << 6,       // (T, 4C)
  saved_statistics =
      1 << 7,  // fp32: mean and rstd of both norms (4 T), log-sum-exp of attention (NH T)
};
inline constexpr std::uint8_t saved_none = 0;
inline constexpr std::uint8_t saved_all = 0xff;

inline constexpr int saved_tensor_count = 8;

// What one kernel of a layer makes in one go: tensors that are recomputed together.
inline constexpr std::uint8_t recompute_groups[] = {
    saved_ln1, saved_qkv, saved_attention | saved_statistics, saved_residual, saved_ln2,
    saved_fc,  saved_gelu};

struct SavedLayout {
  SavedTensor tensor;
  std::uint64_t offset = 0;  // bytes from the start of the buffer; 4096-aligned
  std::uint64_t bytes = 0;   // all sequences, padded to 4096
  std::uint64_t stride = 0;  // bytes of one sequence, not padded
  std::int64_t width = 0;    // columns per token (statistics: 4 + NH)
};

// A buffer of `sequences` sequences that holds the tensors of `mask` and nothing else, one after
// the other: of each tensor its sequences in a row, so that a tensor of a micro-batch is one slice.
// The buffers of BufferKind::saved hold a micro-batch of what forward saves; scratch holds
// Workload::sequences_at_once sequences of what it does not.
std::vector<SavedLayout> saved_layout(const Problem& problem, std::uint8_t mask,
                                      std::int64_t sequences);
// Bytes of such a buffer, for one micro-batch unless said otherwise.
std::uint64_t saved_bytes(const Problem& problem, std::uint8_t mask, std::int64_t sequences);
std::uint64_t saved_bytes(const Problem& problem, std::uint8_t mask);

// Bytes of the activation between two layers, and of its gradient, for one micro-batch: (b, T, C),
// padded to 4096.
std::uint64_t checkpoint_bytes(const Problem& problem);

// Scratch that a compute task may use (exactly this much is planned for it), with S the kernel
// batch, Workload::sequences_at_once:
//   forward         the tensors it does not save, of S sequences
//   backward        the tensors that are not available, of S sequences, plus the gradients of S
//                   sequences (gradient_scratch_bytes(), as the backend needs them)
//   head            for the rows of one chunk, fp32: logits (V), the norm's output and its gradient
//                   (2 C), and two statistics; S times that, at most 8 times. A backend whose rows
//                   are narrower fits more of them
std::uint64_t forward_scratch_bytes(const Problem& problem, std::uint8_t saves);
std::uint64_t backward_scratch_bytes(const Problem& problem, std::uint8_t available);
std::uint64_t head_scratch_bytes(const Problem& problem);
// Tokens per chunk of logits in the head.
std::int64_t head_chunk_tokens(const Problem& problem);

// FLOPs of recomputing what is not `available` before a layer's backward, for one micro-batch: the
// matrix products whose output is missing, attention (its scores alone where only the log-sum-exp
// in the statistics is missing); norms and GELU count nothing, as everywhere. With `output` also
// the layer's output (the down-projection), which nothing needs but which frameworks that re-run
// the whole layer pay for: nothing available and `output` is one whole layer forward.
double recompute_flops(const Problem& problem, std::uint8_t available, bool output);
// FLOPs of the tasks of one micro-batch: a layer's forward; its backward, with what it recomputes;
// the head, forward and backward.
double forward_flops(const Problem& problem);
double backward_flops(const Problem& problem, std::uint8_t available, bool output);
double head_flops(const Problem& problem);

}  // namespace spillway
