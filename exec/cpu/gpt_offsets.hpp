// Where the tensors that a GPT's code names lie in its flat units (policies/model/units.hpp):
// for every backend alike.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "policies/model/saved.hpp"

namespace spillway {

// First elements of the tensors of a layer's unit.
struct LayerOffsets {
  std::int64_t norm1_weight, norm1_bias, qkv_weight, qkv_bias, projection_weight, projection_bias,
      norm2_weight, norm2_bias, fc_weight, fc_bias, fc_projection_weight, fc_projection_bias;
};
LayerOffsets layer_offsets(const ModelSpec& model);

// The same of the embedding unit.
struct EmbeddingOffsets {
  std::int64_t token_table, position_table, norm_weight, norm_bias;
};
EmbeddingOffsets embedding_offsets(const ModelSpec& model);

// The place of a tensor among those that a layer may save.
inline std::size_t bit_of(SavedMask tensor) {
  return static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(tensor)));
}

}  // namespace spillway
