// The next tokens of several sequences: for each its logits, from all tokens before it. Keys and
// values of these are kept, so that a token costs one pass over the weights for all sequences.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "exec/cpu/model_cpu.hpp"
#include "exec/generate/unit_weights.hpp"

namespace spillway {

class Decoder {
 public:
  // Of `sequences` sequences of at most `positions` tokens. `weights` outlives it. Throws
  // InputError where the model has fewer positions.
  Decoder(const ModelSpec& model, UnitWeights& weights, std::int64_t sequences,
          std::int64_t positions, int threads = 1);

  // Bytes that it takes: keys and values, and what computing needs.
  static std::uint64_t memory_bytes(const ModelSpec& model, std::int64_t sequences,
                                    std::int64_t positions);
  // Bytes of keys and values alone.
  static std::uint64_t cache_bytes(const ModelSpec& model, std::int64_t sequences,
                                   std::int64_t positions);

  // Adds tokens to a sequence; returns the logits (V) of what follows the last one, until the next
  // call.
  std::span<const float> append(std::int64_t sequence, std::span<const std::int32_t> tokens);
  // Adds one token to each of these sequences, which ascend; returns their logits (n, V).
  std::span<const float> append_one(std::span<const std::int64_t> sequences,
                                    std::span<const std::int32_t> tokens);

  std::int64_t length(std::int64_t sequence) const {
    return lengths_[static_cast<std::size_t>(sequence)];
  }
  std::int64_t positions() const { return positions_; }
  // Forgets all tokens of a sequence from `length` on.
  void cut(std::int64_t sequence, std::int64_t length);

 private:
  const ModelCpu& model_of(std::int64_t rows);
  void run(std::span<const std::int64_t> sequence_of_row, std::span<const std::int32_t> tokens);
  std::span<const float> logits(std::int64_t first_row, std::int64_t rows);
  KeyValueCache cache(std::int64_t layer, std::int64_t sequence);

  const ModelSpec model_;
  UnitWeights& weights_;
  std::int64_t positions_;
  std::vector<std::int64_t> lengths_;
  std::vector<float> cache_;  // (layers, sequences, 2, positions, K)
  std::map<std::int64_t, std::unique_ptr<ModelCpu>> by_rows_;
  std::vector<float> hidden_, next_, scores_, logits_, norm_;
  std::vector<std::byte> scratch_;
};

}  // namespace spillway
