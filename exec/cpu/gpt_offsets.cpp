#include "exec/cpu/gpt_offsets.hpp"

#include "policies/model/stages.hpp"

namespace spillway {

LayerOffsets layer_offsets(const ModelSpec& model) {
  const auto layer = unit_layout(model, 0);
  return {offset_of(layer, "ln_1.weight"),        offset_of(layer, "ln_1.bias"),
          offset_of(layer, "attn.c_attn.weight"), offset_of(layer, "attn.c_attn.bias"),
          offset_of(layer, "attn.c_proj.weight"), offset_of(layer, "attn.c_proj.bias"),
          offset_of(layer, "ln_2.weight"),        offset_of(layer, "ln_2.bias"),
          offset_of(layer, "mlp.c_fc.weight"),    offset_of(layer, "mlp.c_fc.bias"),
          offset_of(layer, "mlp.c_proj.weight"),  offset_of(layer, "mlp.c_proj.bias")};
}

EmbeddingOffsets embedding_offsets(const ModelSpec& stage) {
  const ModelSpec model = whole_model(stage);  // a stage without these tables never looks there
  const auto embedding = unit_layout(model, embedding_unit(model));
  return {offset_of(embedding, "wte.weight"), offset_of(embedding, "wpe.weight"),
          offset_of(embedding, "ln_f.weight"), offset_of(embedding, "ln_f.bias")};
}

}  // namespace spillway
