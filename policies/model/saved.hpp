// What a layer's forward may save for its backward, besides the layer's input: a list that belongs
// to the model, and buffers that hold some of it.
//
// A mask names tensors of the list, the first by bit 0. Whatever is not saved is recomputed.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "policies/model/units.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

using SavedMask = std::uint16_t;
inline constexpr SavedMask saved_none = 0;

// The place of the tensor whose bit this is.
inline std::size_t bit_of(SavedMask tensor) {
  return static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(tensor)));
}

struct SavedTensor {
  SavedMask bit = 0;
  std::string_view name;
  std::int64_t width = 0;  // columns per token
  bool fp32 = false;       // whatever the activations are
};

// What is so in every model: the statistics are bit 7, and the tensors below them all there are
// but for what qk_norm adds.
inline constexpr SavedMask saved_of_every_model = 0xff;
inline constexpr SavedMask saved_statistics = 1 << 7;

// The tensors of a layer, by bit, and the mask of all of them.
std::vector<SavedTensor> saved_tensors(const ModelSpec& model);
SavedMask saved_all(const ModelSpec& model);
// Those of a layer that are not in `mask`.
SavedMask saved_others(const ModelSpec& model, SavedMask mask);

// A GPT's tensors, with F = 4 C.
namespace gpt_saved {
inline constexpr SavedMask ln1 = 1 << 0;        // (T, C)
inline constexpr SavedMask qkv = 1 << 1;        // (T, 3C)
inline constexpr SavedMask attention = 1 << 2;  // (T, C)   attention output before projection
inline constexpr SavedMask residual = 1 << 3;   // (T, C)   input + projection
inline constexpr SavedMask ln2 = 1 << 4;        // (T, C)
inline constexpr SavedMask fc = 1 << 5;         // (T, 4C)  before GELU
inline constexpr SavedMask gelu = 1 << 6;       // (T, 4C)
// fp32: mean and rstd of both norms (4 T), log-sum-exp of attention (NH T)
inline constexpr SavedMask statistics = saved_statistics;
inline constexpr SavedMask all = saved_of_every_model;
inline constexpr int count = 8;
}  // namespace gpt_saved

// A llama's tensors, with A = NH head_width, K = NKV head_width and the feed-forward width F.
namespace llama_saved {
inline constexpr SavedMask norm1 = 1 << 0;      // (T, C)
inline constexpr SavedMask qkv = 1 << 1;        // (T, A + 2K)  queries and keys rotated, but with
                                                // qk_norm as the product makes them
inline constexpr SavedMask attention = 1 << 2;  // (T, A)       before the output projection
inline constexpr SavedMask residual = 1 << 3;   // (T, C)       input + projection
inline constexpr SavedMask norm2 = 1 << 4;      // (T, C)
inline constexpr SavedMask gate_up = 1 << 5;    // (T, 2F)
inline constexpr SavedMask product = 1 << 6;    // (T, F)       silu(gate) up
// fp32: rstd of both norms (2 T), log-sum-exp of attention (NH T); with qk_norm also the rstd of
// each head's query and key ((NH + NKV) T)
inline constexpr SavedMask statistics = saved_statistics;
inline constexpr SavedMask rotated = 1 << 8;  // (T, A + K)   with qk_norm only: queries and keys,
                                              // normed and rotated
inline constexpr int most = 9;
}  // namespace llama_saved

struct SavedLayout {
  SavedMask tensor = 0;      // the bit of one tensor
  std::uint64_t offset = 0;  // bytes from the start of the buffer; 4096-aligned
  std::uint64_t bytes = 0;   // all sequences, padded to 4096
  std::uint64_t stride = 0;  // bytes of one sequence, not padded
  std::int64_t width = 0;    // columns per token
};

// A buffer of `sequences` sequences that holds the tensors of `mask` and nothing else, one after
// the other: of each tensor its sequences in a row, so that a tensor of a micro-batch is one slice.
// The buffers of BufferKind::saved hold a micro-batch of what forward saves; scratch holds
// Workload::sequences_at_once sequences of what it does not.
std::vector<SavedLayout> saved_layout(const Problem& problem, SavedMask mask,
                                      std::int64_t sequences);
// Bytes of such a buffer, for one micro-batch unless said otherwise.
std::uint64_t saved_bytes(const Problem& problem, SavedMask mask, std::int64_t sequences);
std::uint64_t saved_bytes(const Problem& problem, SavedMask mask);

}  // namespace spillway
