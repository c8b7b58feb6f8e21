#include "exec/cpu/llama_offsets.hpp"

#include <string_view>

#include "policies/model/stages.hpp"

namespace spillway {

LlamaLayerOffsets llama_layer_offsets(const ModelSpec& model) {
  const auto layer = unit_layout(model, 0);
  const auto offset = [&](bool has, std::string_view name) {
    return has ? offset_of(layer, name) : -1;
  };
  LlamaLayerOffsets offsets{};
  offsets.norm1 = offset(true, "input_layernorm.weight");
  offsets.qkv = offset(true, "self_attn.q_proj.weight");
  offsets.qkv_bias = offset(model.qkv_bias, "self_attn.q_proj.bias");
  offsets.query_norm = offset(model.qk_norm, "self_attn.q_norm.weight");
  offsets.key_norm = offset(model.qk_norm, "self_attn.k_norm.weight");
  offsets.projection = offset(true, "self_attn.o_proj.weight");
  offsets.norm2 = offset(true, "post_attention_layernorm.weight");
  offsets.gate_up = offset(true, "mlp.gate_proj.weight");
  offsets.down = offset(true, "mlp.down_proj.weight");
  return offsets;
}

LlamaTableOffsets llama_table_offsets(const ModelSpec& stage) {
  const ModelSpec model = whole_model(stage);  // a stage without these tables never looks there
  const char* const token_table = "model.embed_tokens.weight";
  const auto head = unit_layout(model, head_unit(model));
  return {offset_of(unit_layout(model, embedding_unit(model)), token_table),
          offset_of(head, "model.norm.weight"),
          offset_of(head, model.tied ? token_table : "lm_head.weight")};
}

}  // namespace spillway
