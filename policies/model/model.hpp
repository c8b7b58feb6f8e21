// The model to train, and the arithmetic of its shapes: parameters, bytes, FLOPs.
//
// Shapes: B sequences of T tokens, C = hidden, NH heads, V vocabulary, L layers.
// FLOPs count a multiply-add as two and attention without the causal half:
// one layer forward on one micro-batch = 24 b T C^2 + 4 b T^2 C for a GPT (facts: docs/metrics.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

enum class Architecture : std::uint8_t {
  gpt,   // learned positions, pre-LN, GELU, tied head: what the executor trains
  llama  // rotary, RMSNorm, SwiGLU, grouped-query attention, untied head: simulated only
};

struct ModelSpec {
  std::string name;
  Architecture architecture = Architecture::gpt;
  std::int64_t layers = 0;      // L
  std::int64_t hidden = 0;      // C
  std::int64_t heads = 0;       // NH
  std::int64_t kv_heads = 0;    // llama: key/value heads; gpt: = heads
  std::int64_t ffn = 0;         // feed-forward width; gpt: 4C
  std::int64_t vocabulary = 0;  // V
  std::int64_t positions = 0;   // longest sequence (rows of the position table for a GPT)
  std::string source;           // where the shape is from

  std::int64_t qkv_width() const;         // columns of queries, keys and values; GPT: 3 C
  std::int64_t fc_width() const;          // columns that GELU or SwiGLU takes; GPT: F, Llama: 2 F
  std::int64_t layer_parameters() const;  // one layer; GPT: 12 C^2 + 13 C
  std::int64_t embedding_parameters() const;  // token + position tables, final norm, untied head
  std::int64_t parameters() const;            // all

  double layer_forward_flops(std::int64_t sequences, std::int64_t tokens_per_sequence) const;
  double head_forward_flops(std::int64_t sequences,
                            std::int64_t tokens_per_sequence) const;  // logits: 2 b T C V
  double forward_flops(std::int64_t sequences,
                       std::int64_t tokens_per_sequence) const;  // all layers + head

  // Throws InputError naming the field (heads must divide hidden, all positive, ...).
  void validate() const;

  bool operator==(const ModelSpec&) const = default;
};

// Built-in models (from models/*.toml, embedded), in a stable order.
const std::vector<ModelSpec>& builtin_models();

// A built-in name or the path of a TOML file; `overrides` are the "model.KEY=VALUE" of --set,
// given here without the "model." prefix. Throws InputError with file:line, and near names as a
// hint.
ModelSpec load_model(const std::string& name_or_path,
                     const std::vector<std::string>& overrides = {});

// The same, from TOML text (`origin` is named in errors); and back, so that a trace carries its
// model.
ModelSpec parse_model(const std::string& toml_text, const std::string& origin,
                      const std::vector<std::string>& overrides = {});
std::string model_to_toml(const ModelSpec& model);

// The keys that overrides may set, in the order of docs/machine-files.md.
std::vector<std::string> model_keys();
// Whether `value` is of the form that `key` takes, e.g. "layers", "48". Throws InputError, without
// a place, where it is not, and where there is no such key.
void check_model_setting(const std::string& key, const std::string& value);

}  // namespace spillway
