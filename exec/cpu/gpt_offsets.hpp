// Where the tensors that a GPT's code names lie in its flat units (policies/model/units.hpp):
// for every backend alike.
#pragma once

#include <cstdint>

#include "policies/model/units.hpp"

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
EmbeddingOffsets embedding_offsets(const ModelSpec& stage);

}  // namespace spillway
