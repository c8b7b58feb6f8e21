// The model to train, and the arithmetic of its shapes: parameters, bytes, FLOPs.
//
// Shapes: B sequences of T tokens, C = hidden, NH heads, V vocabulary, L layers; A = NH times the
// width of a head, which is C in a GPT.
// FLOPs count a multiply-add as two and attention without the causal half:
// one layer forward on one micro-batch = 24 b T C^2 + 4 b T^2 C for a GPT (facts: docs/metrics.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

enum class Architecture : std::uint8_t {
  gpt,   // learned positions, LayerNorm, GELU, tied head: GPT-2, GPT-3
  llama  // rotary, RMSNorm, SwiGLU, grouped-query attention: Llama, Qwen, Mistral
};

// How the angles of rotary positions are scaled for sequences longer than those first trained on.
enum class RopeScaling : std::uint8_t {
  none,
  linear,  // by 1 / rope_factor
  llama3   // low frequencies by 1 / rope_factor, high ones not, those in between in between
};

inline constexpr double most_lora_alpha = 1e6;

struct ModelSpec {
  std::string name;
  Architecture architecture = Architecture::gpt;
  std::int64_t layers = 0;      // L
  std::int64_t hidden = 0;      // C
  std::int64_t heads = 0;       // NH
  std::int64_t kv_heads = 0;    // NKV, key/value heads; gpt: = heads
  std::int64_t head_width = 0;  // of one attention head; 0: hidden / heads (width_of_head())
  std::int64_t ffn = 0;         // F, feed-forward width; gpt: 4C
  std::int64_t vocabulary = 0;  // V
  std::int64_t positions = 0;   // longest sequence (rows of the position table for a GPT)
  double norm_epsilon = 1e-5;
  // Below: of a llama. A GPT has these values.
  double rope_theta = 10'000;  // angle of position p at columns i: p theta^(-2 i / head width)
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 1;
  double rope_low_frequency_factor = 1, rope_high_frequency_factor = 4;  // llama3
  std::int64_t rope_original_positions = 0;                              // llama3
  bool qkv_bias = true;     // queries, keys and values have biases; a llama file's default: false
  bool qk_norm = false;     // RMSNorm over each head's query and key
  std::int64_t window = 0;  // query i meets keys i - window + 1 .. i; 0: all before it
  bool tied = true;         // the head's matrix is the token table; a llama file's default: false
  // What is trained: everything, unless one of these says otherwise; not both.
  std::int64_t frozen_layers = 0;  // not these first layers, nor the embedding: the last ones only
  // Only low-rank adapters beside matrices of the layers (LoRA, arXiv 2106.09685): a matrix W of
  // them computes W x + lora_alpha / lora_rank B A x with A (rank, in) and B (out, rank).
  std::int64_t lora_rank = 0;  // 0: none
  double lora_alpha = 16;      // at most most_lora_alpha
  double lora_dropout = 0;  // of the adapters' inputs: the share that is zero, from the run's seed
  std::string lora_targets = "all-linear";  // or names: "q_proj,v_proj" (units.hpp)
  std::string source;                       // where the shape is from
  // Of one stage of a pipeline, whose `layers` are some of a whole model's (stages.hpp).
  struct Stage {
    std::int64_t whole_layers = 0;  // of the whole model; 0: this is a whole model
    std::int64_t first_layer = 0;   // which of them layer 0 is
    std::int64_t chunks = 1;        // runs of consecutive layers, all alike
    std::int64_t stride = 0;        // from the first layer of a run to that of the next
    bool operator==(const Stage&) const = default;
  };
  Stage stage = {};

  std::int64_t width_of_head() const { return head_width > 0 ? head_width : hidden / heads; }
  std::int64_t attention_width() const { return heads * width_of_head(); }  // A; GPT: C
  std::int64_t kv_width() const { return kv_heads * width_of_head(); }      // K; GPT: C
  std::int64_t qkv_width() const;  // columns of queries, keys and values: A + 2 K; GPT: 3 C
  std::int64_t fc_width() const;   // columns that GELU or SwiGLU takes; GPT: F, llama: 2 F

  bool has_adapters() const { return lora_rank > 0; }
  bool has_frozen() const { return has_adapters() || frozen_layers > 0; }
  double lora_scale() const { return lora_alpha / static_cast<double>(lora_rank); }

  // Counted from the tensors of the units (units.hpp), adapters among them.
  std::int64_t layer_parameters() const;      // one layer; GPT: 12 C^2 + 13 C
  std::int64_t embedding_parameters() const;  // tables, final norm, untied head
  std::int64_t parameters() const;            // all
  std::int64_t trained_parameters() const;

  double layer_forward_flops(std::int64_t sequences,
                             std::int64_t tokens_per_sequence) const;  // of layer_operators()
  double head_forward_flops(std::int64_t sequences,
                            std::int64_t tokens_per_sequence) const;  // logits: 2 b T C V
  double forward_flops(std::int64_t sequences,
                       std::int64_t tokens_per_sequence) const;  // all layers + head

  // Throws InputError naming the field (heads must divide hidden, all positive, ...).
  void validate() const;

  bool operator==(const ModelSpec&) const = default;
};

// The model without what is said of its training: without adapters, and all of it trained.
ModelSpec base_model(const ModelSpec& model);

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
