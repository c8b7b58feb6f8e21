#include "policies/model/units.hpp"

#include <algorithm>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

class LayoutBuilder {
 public:
  // A matrix [rows, columns] or a table of so many rows.
  void matrix(std::string_view name, std::int64_t rows, std::int64_t columns) {
    add(name, rows, columns, true);
  }
  // The weight or bias of a norm, or the bias of a matrix.
  void vector(std::string_view name, std::int64_t length) { add(name, 1, length, false); }
  std::vector<TensorLayout> take() { return std::move(tensors_); }

 private:
  void add(std::string_view name, std::int64_t rows, std::int64_t columns, bool decay) {
    tensors_.push_back({name, rows, columns, offset_, decay});
    offset_ += rows * columns;
  }
  std::vector<TensorLayout> tensors_;
  std::int64_t offset_ = 0;
};

std::vector<TensorLayout> gpt_layer(const ModelSpec& model) {
  const std::int64_t c = model.hidden;
  LayoutBuilder layout;
  layout.vector("ln_1.weight", c);
  layout.vector("ln_1.bias", c);
  layout.matrix("attn.c_attn.weight", 3 * c, c);
  layout.vector("attn.c_attn.bias", 3 * c);
  layout.matrix("attn.c_proj.weight", c, c);
  layout.vector("attn.c_proj.bias", c);
  layout.vector("ln_2.weight", c);
  layout.vector("ln_2.bias", c);
  layout.matrix("mlp.c_fc.weight", model.ffn, c);
  layout.vector("mlp.c_fc.bias", model.ffn);
  layout.matrix("mlp.c_proj.weight", c, model.ffn);
  layout.vector("mlp.c_proj.bias", c);
  return layout.take();
}

std::vector<TensorLayout> gpt_embedding(const ModelSpec& model) {
  LayoutBuilder layout;
  layout.matrix("wte.weight", model.vocabulary, model.hidden);
  layout.matrix("wpe.weight", model.positions, model.hidden);
  layout.vector("ln_f.weight", model.hidden);
  layout.vector("ln_f.bias", model.hidden);
  return layout.take();
}

std::vector<TensorLayout> llama_layer(const ModelSpec& model) {
  const std::int64_t c = model.hidden, a = model.attention_width(), k = model.kv_width();
  LayoutBuilder layout;
  layout.vector("input_layernorm.weight", c);
  layout.matrix("self_attn.q_proj.weight", a, c);
  layout.matrix("self_attn.k_proj.weight", k, c);
  layout.matrix("self_attn.v_proj.weight", k, c);
  if (model.qkv_bias) {
    layout.vector("self_attn.q_proj.bias", a);
    layout.vector("self_attn.k_proj.bias", k);
    layout.vector("self_attn.v_proj.bias", k);
  }
  if (model.qk_norm) {
    layout.vector("self_attn.q_norm.weight", model.width_of_head());
    layout.vector("self_attn.k_norm.weight", model.width_of_head());
  }
  layout.matrix("self_attn.o_proj.weight", c, a);
  layout.vector("post_attention_layernorm.weight", c);
  layout.matrix("mlp.gate_proj.weight", model.ffn, c);
  layout.matrix("mlp.up_proj.weight", model.ffn, c);
  layout.matrix("mlp.down_proj.weight", c, model.ffn);
  return layout.take();
}

std::vector<TensorLayout> llama_embedding(const ModelSpec& model) {
  LayoutBuilder layout;
  layout.matrix("model.embed_tokens.weight", model.vocabulary, model.hidden);
  if (model.tied) layout.vector("model.norm.weight", model.hidden);
  return layout.take();
}

std::vector<TensorLayout> llama_head(const ModelSpec& model) {
  LayoutBuilder layout;
  layout.vector("model.norm.weight", model.hidden);
  layout.matrix("lm_head.weight", model.vocabulary, model.hidden);
  return layout.take();
}

}  // namespace

std::int64_t unit_count(const ModelSpec& model) { return head_unit(model) + 1; }

std::int64_t embedding_unit(const ModelSpec& model) { return model.layers; }

std::int64_t head_unit(const ModelSpec& model) { return model.layers + (model.tied ? 0 : 1); }

std::vector<TensorLayout> unit_layout(const ModelSpec& model, std::int64_t unit) {
  const bool is_gpt = model.architecture == Architecture::gpt;
  if (unit < model.layers) return is_gpt ? gpt_layer(model) : llama_layer(model);
  if (unit == embedding_unit(model)) return is_gpt ? gpt_embedding(model) : llama_embedding(model);
  return llama_head(model);
}

std::int64_t offset_of(const std::vector<TensorLayout>& layout, std::string_view name) {
  for (const TensorLayout& tensor : layout)
    if (tensor.name == name) return tensor.offset;
  bug("tensor in layout", __FILE__, __LINE__, std::string(name));
}

std::int64_t unit_parameters(const ModelSpec& model, std::int64_t unit) {
  const TensorLayout last = unit_layout(model, unit).back();
  return last.offset + last.elements();
}

std::int64_t unit_elements(const ModelSpec& model, std::int64_t unit) {
  return (unit_parameters(model, unit) + element_alignment - 1) / element_alignment *
         element_alignment;
}

std::int64_t outer_elements(const ModelSpec& model) {
  std::int64_t sum = 0;
  for (std::int64_t unit = model.layers; unit < unit_count(model); ++unit)
    sum += unit_elements(model, unit);
  return sum;
}

std::int64_t largest_unit_elements(const ModelSpec& model) {
  return std::max({unit_elements(model, 0), unit_elements(model, embedding_unit(model)),
                   unit_elements(model, head_unit(model))});
}

std::string unit_name(const ModelSpec& model, std::int64_t unit) {
  if (unit < model.layers) return "layer " + std::to_string(unit);
  return unit == embedding_unit(model) ? "the embedding" : "the head";
}

}  // namespace spillway
