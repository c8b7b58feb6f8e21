#include "policies/model/units.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "policies/model/stages.hpp"

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

// The tensors of the model itself, without adapters.
std::vector<TensorLayout> base_layout(const ModelSpec& model, std::int64_t unit) {
  const bool is_gpt = model.architecture == Architecture::gpt;
  if (unit < model.layers) return is_gpt ? gpt_layer(model) : llama_layer(model);
  if (unit == embedding_unit(model)) {
    if (!has_embedding(model) && !(model.tied && has_head(model))) return {};
    return is_gpt ? gpt_embedding(model) : llama_embedding(model);
  }
  return has_head(model) ? llama_head(model) : std::vector<TensorLayout>{};
}

// The matrices of layers that may have adapters, and PEFT's names of these.
struct AdapterNames {
  std::string_view matrix, a, b;
  int group;  // matrices of the same input
};
constexpr AdapterNames adapter_names[] = {
    {"attn.c_attn.weight", "attn.c_attn.lora_A.weight", "attn.c_attn.lora_B.weight", 0},
    {"attn.c_proj.weight", "attn.c_proj.lora_A.weight", "attn.c_proj.lora_B.weight", 1},
    {"mlp.c_fc.weight", "mlp.c_fc.lora_A.weight", "mlp.c_fc.lora_B.weight", 2},
    {"mlp.c_proj.weight", "mlp.c_proj.lora_A.weight", "mlp.c_proj.lora_B.weight", 3},
    {"self_attn.q_proj.weight", "self_attn.q_proj.lora_A.weight", "self_attn.q_proj.lora_B.weight",
     0},
    {"self_attn.k_proj.weight", "self_attn.k_proj.lora_A.weight", "self_attn.k_proj.lora_B.weight",
     0},
    {"self_attn.v_proj.weight", "self_attn.v_proj.lora_A.weight", "self_attn.v_proj.lora_B.weight",
     0},
    {"self_attn.o_proj.weight", "self_attn.o_proj.lora_A.weight", "self_attn.o_proj.lora_B.weight",
     1},
    {"mlp.gate_proj.weight", "mlp.gate_proj.lora_A.weight", "mlp.gate_proj.lora_B.weight", 2},
    {"mlp.up_proj.weight", "mlp.up_proj.lora_A.weight", "mlp.up_proj.lora_B.weight", 2},
    {"mlp.down_proj.weight", "mlp.down_proj.lora_A.weight", "mlp.down_proj.lora_B.weight", 3}};

const AdapterNames* adapter_names_of(std::string_view matrix) {
  const auto* const found =
      std::find_if(std::begin(adapter_names), std::end(adapter_names),
                   [&](const AdapterNames& one) { return one.matrix == matrix; });
  return found == std::end(adapter_names) ? nullptr : found;
}

// "attn.c_attn" of "attn.c_attn.weight".
std::string module_of(std::string_view matrix) {
  return std::string(matrix.substr(0, matrix.rfind('.')));
}

// Whether one of the names in lora_targets is the matrix's or an end of it, from a dot on.
bool is_target(const ModelSpec& model, std::string_view matrix) {
  if (model.lora_targets == all_linear) return true;
  const std::string whole = module_of(matrix);
  const std::vector<std::string> targets = lora_targets(model);
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& name) {
    return whole == name || whole.substr(whole.find('.') + 1) == name;
  });
}

std::int64_t padded(std::int64_t elements) { return round_up(elements, element_alignment); }

}  // namespace

std::int64_t unit_count(const ModelSpec& model) { return head_unit(model) + 1; }

std::int64_t embedding_unit(const ModelSpec& model) { return model.layers; }

std::int64_t head_unit(const ModelSpec& model) { return model.layers + (model.tied ? 0 : 1); }

std::vector<AdaptedMatrix> adapted_matrices(const ModelSpec& model) {
  if (!model.has_adapters()) return {};
  std::vector<AdaptedMatrix> matrices;
  for (const TensorLayout& tensor : base_layout(model, 0)) {
    const AdapterNames* const names = adapter_names_of(tensor.name);
    if (names == nullptr || !is_target(model, tensor.name)) continue;
    matrices.push_back({tensor.name, names->a, names->b, tensor.rows, tensor.columns, tensor.offset,
                        0, 0, names->group});
  }
  std::int64_t offset = 0;
  for (auto first = matrices.begin(); first != matrices.end();) {
    const auto end = std::find_if(
        first, matrices.end(), [&](const AdaptedMatrix& one) { return one.group != first->group; });
    for (auto one = first; one != end; ++one) {
      one->a = offset;
      offset += model.lora_rank * one->columns;
    }
    for (auto one = first; one != end; ++one) {
      one->b = offset;
      offset += one->rows * model.lora_rank;
    }
    first = end;
  }
  for (AdaptedMatrix& one : matrices) one.matrix += padded(offset);
  return matrices;
}

AdapterWidths adapter_widths(const ModelSpec& model) {
  AdapterWidths widths;
  std::int64_t in_group = 0;
  int group = -1;
  for (const AdaptedMatrix& one : adapted_matrices(model)) {
    in_group = one.group == group ? in_group + model.lora_rank : model.lora_rank;
    group = one.group;
    widths.ranks = std::max(widths.ranks, in_group);
    widths.input = std::max(widths.input, one.columns);
  }
  return widths;
}

std::vector<std::string> lora_targets(const ModelSpec& model) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at <= model.lora_targets.size();) {
    const std::size_t end = std::min(model.lora_targets.find(',', at), model.lora_targets.size());
    names.push_back(model.lora_targets.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

std::vector<std::string> lora_target_names(const ModelSpec& model) {
  std::set<std::string> names;
  for (const TensorLayout& tensor : base_layout(model, 0)) {
    if (adapter_names_of(tensor.name) == nullptr) continue;
    const std::string whole = module_of(tensor.name);
    names.insert(whole);
    names.insert(whole.substr(whole.find('.') + 1));
  }
  std::vector<std::string> sorted(names.begin(), names.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
  return sorted;
}

std::vector<TensorLayout> unit_layout(const ModelSpec& model, std::int64_t unit) {
  std::vector<TensorLayout> layout = base_layout(model, unit);
  const bool is_layer = unit < model.layers;
  if (!model.has_adapters()) {
    const bool frozen =
        model.frozen_layers > 0 && (unit < model.frozen_layers || unit == embedding_unit(model));
    for (TensorLayout& tensor : layout) tensor.trained = !frozen;
    return layout;
  }
  std::vector<TensorLayout> adapters;
  if (is_layer) {
    for (const AdaptedMatrix& one : adapted_matrices(model)) {
      adapters.push_back({one.a_name, model.lora_rank, one.columns, one.a, true, true});
      adapters.push_back({one.b_name, one.rows, model.lora_rank, one.b, true, true});
    }
    std::sort(adapters.begin(), adapters.end(),
              [](const TensorLayout& a, const TensorLayout& b) { return a.offset < b.offset; });
  }
  const std::int64_t first =
      adapters.empty() ? 0 : padded(adapters.back().offset + adapters.back().elements());
  for (TensorLayout& tensor : layout) {
    tensor.trained = false;
    tensor.offset += first;
  }
  layout.insert(layout.begin(), adapters.begin(), adapters.end());
  return layout;
}

std::int64_t offset_of(const std::vector<TensorLayout>& layout, std::string_view name) {
  for (const TensorLayout& tensor : layout)
    if (tensor.name == name) return tensor.offset;
  bug("tensor in layout", __FILE__, __LINE__, std::string(name));
}

std::int64_t unit_parameters(const ModelSpec& model, std::int64_t unit) {
  std::int64_t sum = 0;
  for (const TensorLayout& tensor : unit_layout(model, unit)) sum += tensor.elements();
  return sum;
}

std::int64_t unit_elements(const ModelSpec& model, std::int64_t unit) {
  const std::vector<TensorLayout> layout = unit_layout(model, unit);
  return layout.empty() ? 0 : padded(layout.back().offset + layout.back().elements());
}

std::int64_t trained_elements(const ModelSpec& model, std::int64_t unit) {
  std::int64_t end = 0;
  for (const TensorLayout& tensor : unit_layout(model, unit)) {
    if (tensor.trained) end = tensor.offset + tensor.elements();
  }
  return padded(end);
}

namespace {

using ElementsOf = std::int64_t (*)(const ModelSpec& model, std::int64_t unit);

std::int64_t sum_beside_layers(const ModelSpec& model, ElementsOf elements) {
  std::int64_t sum = 0;
  for (std::int64_t unit = model.layers; unit < unit_count(model); ++unit)
    sum += elements(model, unit);
  return sum;
}

// The last layer is as large as any, and trained whatever is frozen.
std::int64_t largest(const ModelSpec& model, ElementsOf elements) {
  return std::max({elements(model, model.layers - 1), elements(model, embedding_unit(model)),
                   elements(model, head_unit(model))});
}

}  // namespace

std::int64_t outer_elements(const ModelSpec& model) {
  return sum_beside_layers(model, unit_elements);
}

std::int64_t largest_unit_elements(const ModelSpec& model) { return largest(model, unit_elements); }

std::int64_t outer_trained_elements(const ModelSpec& model) {
  return sum_beside_layers(model, trained_elements);
}

std::int64_t largest_trained_elements(const ModelSpec& model) {
  return largest(model, trained_elements);
}

std::string unit_name(const ModelSpec& model, std::int64_t unit) {
  if (unit < model.layers) return "layer " + std::to_string(whole_layer(model, unit));
  return unit == embedding_unit(model) ? "the embedding" : "the head";
}

}  // namespace spillway
