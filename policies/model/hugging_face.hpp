// Models as Hugging Face's transformers describes them: config.json to a ModelSpec and back.
//
// Read are all keys that change what a model computes; the others (token ids, caches, data types)
// are not. Dropout is not applied in training, whatever the configuration says. What Spillway does
// not compute is refused, with the file, the key, its value and what is supported.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policies/model/model.hpp"

namespace spillway {

inline constexpr const char* hugging_face_config_file = "config.json";

// The architectures that are read, as config.json names them: "LlamaForCausalLM".
std::vector<std::string> hugging_face_architectures();

// The model of a config.json, called `name`. `origin` is named in errors. Throws InputError.
ModelSpec parse_hugging_face_config(const std::string& text, const std::string& origin,
                                    const std::string& name);

// Whether one of the architectures is what the model computes.
bool has_hugging_face_architecture(const ModelSpec& model);

// Tokens that begin a text, and that end it or a turn of a chat: bos_token_id and eos_token_id.
struct TextEnds {
  std::optional<std::int64_t> begin;
  std::vector<std::int64_t> ends;
};

// A config.json of this model, whose weights are of type `type` ("float32", "bfloat16"). `ends`:
// of its tokenizer; none: it is not known. Throws InputError where no architecture is the model's.
std::string hugging_face_config(const ModelSpec& model, const std::string& type,
                                const std::optional<TextEnds>& ends = {});
// The config.json that a model was read from, with another type of its weights.
std::string hugging_face_config(const std::string& text, const std::string& type);

}  // namespace spillway
