#include "policies/model/hugging_face_tensors.hpp"

#include <fmt/format.h>

#include "policies/model/peft.hpp"

namespace spillway {

namespace {

constexpr std::string_view head = "lm_head.weight";

// What names of all tensors but the head's matrix begin with.
std::string_view prefix_of(const ModelSpec& model) {
  return model.architecture == Architecture::gpt ? "transformer." : "model.";
}

std::string name_of(const ModelSpec& model, std::int64_t unit, std::string_view tensor) {
  const bool is_gpt = model.architecture == Architecture::gpt;
  if (unit < model.layers)
    return fmt::format("{}{}.{}.{}", prefix_of(model), is_gpt ? "h" : "layers", unit, tensor);
  return is_gpt ? fmt::format("{}{}", prefix_of(model), tensor) : std::string(tensor);
}

bool is_adapter(const TensorLayout& tensor) {
  return tensor.name.ends_with(".lora_A.weight") || tensor.name.ends_with(".lora_B.weight");
}

}  // namespace

std::vector<HuggingFaceTensor> hugging_face_tensors(const ModelSpec& model, std::int64_t unit) {
  std::vector<HuggingFaceTensor> tensors;
  for (const TensorLayout& tensor : unit_layout(model, unit)) {
    if (is_adapter(tensor)) continue;
    const bool is_vector = !tensor.decay;  // a norm or a bias
    const bool transposed =
        model.architecture == Architecture::gpt && unit < model.layers && !is_vector;
    tensors.push_back({name_of(model, unit, tensor.name), unit, tensor, transposed,
                       is_vector    ? std::vector<std::int64_t>{tensor.columns}
                       : transposed ? std::vector<std::int64_t>{tensor.columns, tensor.rows}
                                    : std::vector<std::int64_t>{tensor.rows, tensor.columns}});
  }
  return tensors;
}

std::vector<HuggingFaceTensor> adapter_tensors(const ModelSpec& model, std::int64_t unit) {
  std::vector<HuggingFaceTensor> tensors;
  for (const TensorLayout& tensor : unit_layout(model, unit)) {
    if (!is_adapter(tensor)) continue;
    tensors.push_back({adapter_prefix + name_of(model, unit, tensor.name),
                       unit,
                       tensor,
                       false,
                       {tensor.rows, tensor.columns}});
  }
  return tensors;
}

std::string full_tensor_name(const ModelSpec& model, const std::string& name) {
  if (name == head || name.starts_with(prefix_of(model))) return name;
  return std::string(prefix_of(model)) + name;
}

bool is_ignored_tensor(const ModelSpec& model, std::string_view name) {
  if (name == head) return model.tied;
  if (model.architecture == Architecture::gpt)
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace spillway
