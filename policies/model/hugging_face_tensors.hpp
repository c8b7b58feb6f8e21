// The tensors of a model as transformers names and lays them out in safetensors files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policies/model/units.hpp"

namespace spillway {

struct HuggingFaceTensor {
  std::string name;  // "model.layers.3.mlp.up_proj.weight"
  std::int64_t unit = 0;
  TensorLayout tensor;  // where it lies in the unit
  // The matrices of a GPT-2's layers (Conv1D) are [in, out] in files, [out, in] here.
  bool transposed = false;
  std::vector<std::int64_t> shape;  // in a file
};

// Those of a unit that are the model's own, in flat order.
std::vector<HuggingFaceTensor> hugging_face_tensors(const ModelSpec& model, std::int64_t unit);
// Its adapters, by PEFT's names: "base_model.model.model.layers.3.mlp.up_proj.lora_A.weight".
std::vector<HuggingFaceTensor> adapter_tensors(const ModelSpec& model, std::int64_t unit);

// The name that a tensor of a file has in a whole model, which a file may leave the prefix out of:
// "h.0.ln_1.bias" is "transformer.h.0.ln_1.bias", "norm.weight" is "model.norm.weight".
std::string full_tensor_name(const ModelSpec& model, const std::string& name);

// Whether a tensor (full name) that is no weight may be in a file: masks and tables that follow
// from the shape, or a head that is tied to the token table.
bool is_ignored_tensor(const ModelSpec& model, std::string_view name);

}  // namespace spillway
