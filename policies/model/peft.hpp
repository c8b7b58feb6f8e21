// Low-rank adapters as Hugging Face's PEFT keeps them: a folder with adapter_config.json and
// adapter_model.safetensors. And as people name them in a line: "rank=16,targets=q_proj+v_proj".
#pragma once

#include <string>
#include <vector>

#include "policies/model/model.hpp"

namespace spillway {

inline constexpr const char* adapter_config_file = "adapter_config.json";
inline constexpr const char* adapter_weights_file = "adapter_model.safetensors";
inline constexpr const char* adapter_prefix = "base_model.model.";  // of the names of its tensors

// What an adapter_config.json says, as KEY=VALUE of the model: {"lora_rank=16", ...}. `base`: the
// model that the adapter is beside, whose matrices the targets are. Read are all keys that change
// what an adapter computes; one that Spillway does not compute is refused. `origin` is named in
// errors. Throws InputError.
std::vector<std::string> parse_adapter_config(const std::string& text, const std::string& origin,
                                              const ModelSpec& base);

// The model that an adapter_config.json says it is beside: a folder or a name on Hugging Face.
// Throws InputError where it names none.
std::string adapter_base(const std::string& text, const std::string& origin);

// The adapter_config.json of a model with adapters. `base`: a folder or a name on Hugging Face that
// PEFT finds the model under; may be empty.
std::string adapter_config(const ModelSpec& model, const std::string& base);

// The text of an adapter_config.json with `base` for its model. `origin` is named in errors. Throws
// InputError.
std::string adapter_config_beside(const std::string& text, const std::string& origin,
                                  const std::string& base);

// "rank=16[,alpha=32][,dropout=0.05][,targets=q_proj+v_proj]" as KEY=VALUE of the model. Without
// alpha it is twice the rank, without targets all matrices of the layers have adapters. Throws
// InputError that names the setting lora.
std::vector<std::string> lora_overrides(const std::string& text);

}  // namespace spillway
