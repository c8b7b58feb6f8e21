// Where the tensors that a llama's code names lie in its flat units (policies/model/units.hpp): for
// every backend alike.
#pragma once

#include <cstdint>

#include "policies/model/units.hpp"

namespace spillway {

// First elements of the tensors of a layer's unit; -1: the model has no such tensor.
struct LlamaLayerOffsets {
  std::int64_t norm1, qkv, qkv_bias;  // (A + 2 K, C), (A + 2 K): queries, keys, values
  std::int64_t query_norm, key_norm;  // of a head
  std::int64_t projection, norm2;
  std::int64_t gate_up;  // (2 F, C)
  std::int64_t down;
};
LlamaLayerOffsets llama_layer_offsets(const ModelSpec& model);

// First elements of the token table in the embedding unit, and in the head unit, of the final norm
// and of the head's matrix, which is the token table if the head is tied.
struct LlamaTableOffsets {
  std::int64_t token_table, final_norm, head;
};
LlamaTableOffsets llama_table_offsets(const ModelSpec& stage);

}  // namespace spillway
