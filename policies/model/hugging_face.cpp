#include "policies/model/hugging_face.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "policies/machine/field_problem.hpp"

namespace spillway {

namespace {

using nlohmann::json;

struct Family {
  const char* architecture;
  const char* type;
};

constexpr std::array<Family, 5> families = {{{"GPT2LMHeadModel", "gpt2"},
                                             {"LlamaForCausalLM", "llama"},
                                             {"MistralForCausalLM", "mistral"},
                                             {"Qwen2ForCausalLM", "qwen2"},
                                             {"Qwen3ForCausalLM", "qwen3"}}};

std::string shown(const json& value) {
  constexpr std::size_t longest = 100;
  const std::string text = printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
  return text.size() > longest ? text.substr(0, longest) + " ..." : text;
}

// The keys of a config.json, or of a table in it. A key that is null is taken as not given, as
// transformers does.
class Keys {
 public:
  Keys(const json& values, std::string origin, std::string table = "")
      : values_(values), origin_(std::move(origin)), table_(std::move(table)) {}

  bool given(const char* key) const {
    const auto found = values_.find(key);
    return found != values_.end() && !found->is_null();
  }
  // Whether it is there, if only as null.
  bool named(const char* key) const { return values_.contains(key); }
  const json& operator[](const char* key) const { return values_.at(key); }

  // Of a key that is left out it is the usual value that is not supported here.
  [[noreturn]] void refuse(const char* key, const std::string& supported) const {
    const std::string found = named(key) ? "is " + shown(values_.at(key)) : "is left out";
    throw InputError(origin_, 0, fmt::format("{}{} {}", table_, key, found),
                     "supported: " + supported);
  }
  void require(const char* key) const {
    if (given(key)) return;
    throw InputError(origin_, 0, fmt::format("{}{} is missing", table_, key),
                     "transformers writes it with every model: is the file whole?");
  }

  std::int64_t count(const char* key) const {
    require(key);
    const json& value = values_.at(key);
    const bool fits =
        value.is_number_integer() &&
        (!value.is_number_unsigned() ||
         value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    if (!fits || value.get<std::int64_t>() < 0) refuse(key, "whole numbers");
    return value.get<std::int64_t>();
  }
  std::int64_t count(const char* key, std::int64_t usual) const {
    return given(key) ? count(key) : usual;
  }
  double number(const char* key) const {
    require(key);
    const json& value = values_.at(key);
    const double number = value.is_number() ? value.get<double>() : 0;
    if (!(number > 0) || !std::isfinite(number)) refuse(key, "numbers above 0");
    return number;
  }
  double number(const char* key, double usual) const { return given(key) ? number(key) : usual; }
  bool flag(const char* key, bool usual) const {
    if (!given(key)) return usual;
    if (!values_.at(key).is_boolean()) refuse(key, "true and false");
    return values_.at(key).get<bool>();
  }
  std::string text(const char* key, const std::string& usual) const {
    if (!given(key)) return usual;
    if (!values_.at(key).is_string()) refuse(key, "text");
    return values_.at(key).get<std::string>();
  }
  // Refuses any other value.
  void only(const char* key, bool value) const {
    if (flag(key, value) != value) refuse(key, value ? "true" : "false");
  }
  void only(const char* key, const std::vector<std::string>& texts) const {
    const std::string value = text(key, texts.front());
    if (std::find(texts.begin(), texts.end(), value) == texts.end())
      refuse(key, fmt::format("{}", fmt::join(texts, ", ")));
  }
  Keys table(const char* key) const {
    if (!values_.at(key).is_object()) refuse(key, "a table of parameters, or null");
    return {values_.at(key), origin_, fmt::format("{}{}.", table_, key)};
  }

 private:
  const json& values_;
  std::string origin_, table_;
};

const Family& family_of(const Keys& keys) {
  std::string supported;
  for (const Family& family : families)
    supported += fmt::format("{}{}", supported.empty() ? "" : ", ", family.architecture);
  const bool named = keys.given("architectures");
  if (!named) keys.require("model_type");
  const char* const key = named ? "architectures" : "model_type";
  const json& value = keys[key];
  const bool is_list = value.is_array() && value.size() == 1 && value.front().is_string();
  if (named ? !is_list : !value.is_string()) keys.refuse(key, supported);
  const std::string name = named ? value.front().get<std::string>() : value.get<std::string>();
  for (const Family& family : families) {
    if (name != (named ? family.architecture : family.type)) continue;
    // transformers goes by the type.
    if (keys.text("model_type", family.type) != family.type)
      keys.refuse("model_type", fmt::format("{} with {}", family.type, family.architecture));
    return family;
  }
  keys.refuse(key, supported);
}

void read_gpt(const Keys& keys, ModelSpec& model) {
  model.architecture = Architecture::gpt;
  model.layers = keys.count("n_layer");
  model.hidden = keys.count("n_embd");
  model.heads = model.kv_heads = keys.count("n_head");
  model.positions = keys.count("n_positions");
  model.norm_epsilon = keys.number("layer_norm_epsilon", 1e-5);
  model.tied = true;
  // Larger ones are refused below, and not multiplied here.
  constexpr std::int64_t most = 1'000'000'000;
  model.ffn = 4 * std::min(model.hidden, most);
  if (keys.count("n_inner", model.ffn) != model.ffn)
    keys.refuse("n_inner", fmt::format("4 x n_embd = {}, or null", model.ffn));
  // Both are 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
  keys.only("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  keys.only("scale_attn_weights", true);
  keys.only("scale_attn_by_inverse_layer_idx", false);
  keys.only("add_cross_attention", false);
  keys.only("tie_word_embeddings", true);
}

// transformers/modeling_rope_utils.py. Newer versions write rope_parameters, with the base in it,
// instead of rope_theta and rope_scaling.
void read_rope(const Keys& keys, ModelSpec& model) {
  const auto at_least_1 = [](const Keys& from, const char* key, double number) {
    if (number < 1) from.refuse(key, "numbers of at least 1");
    return number;
  };
  model.rope_theta = at_least_1(keys, "rope_theta", keys.number("rope_theta", 10000));
  if (keys.number("partial_rotary_factor", 1) != 1) keys.refuse("partial_rotary_factor", "1");
  const bool both = keys.given("rope_scaling") && keys.given("rope_parameters");
  if (both && keys["rope_scaling"] != keys["rope_parameters"])
    keys.refuse("rope_parameters", "as rope_scaling says, or one of the two alone");
  const char* const table = keys.given("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!keys.given(table)) return;
  const Keys rope = keys.table(table);
  if (rope.given("rope_theta")) {
    const double theta = at_least_1(rope, "rope_theta", rope.number("rope_theta"));
    if (keys.given("rope_theta") && theta != model.rope_theta)
      rope.refuse("rope_theta", fmt::format("{}, as rope_theta says", model.rope_theta));
    model.rope_theta = theta;
  }
  if (rope.number("partial_rotary_factor", 1) != 1) rope.refuse("partial_rotary_factor", "1");
  const char* const kind = rope.given("rope_type") ? "rope_type" : "type";
  // One table for each type of layer, as some models have it, has no type.
  if (!rope.given(kind) && !rope.given("rope_theta")) {
    for (const char* type : {"full_attention", "sliding_attention"})
      if (rope.given(type)) rope.refuse(type, "one rope for all layers");
  }
  const std::string type = rope.text(kind, "default");
  if (type == "default") return;
  if (type == "linear") {
    model.rope_scaling = RopeScaling::linear;
    model.rope_factor = at_least_1(rope, "factor", rope.number("factor"));
  } else if (type == "llama3") {
    model.rope_scaling = RopeScaling::llama3;
    model.rope_factor = at_least_1(rope, "factor", rope.number("factor"));
    model.rope_low_frequency_factor = rope.number("low_freq_factor");
    model.rope_high_frequency_factor = rope.number("high_freq_factor");
    // As transformers reads it: beside the table, then in it, then all positions.
    const char* const original = "original_max_position_embeddings";
    model.rope_original_positions = keys.count(original, rope.count(original, model.positions));
    if (model.rope_original_positions < 1)
      (keys.given(original) ? keys : rope).refuse(original, "whole numbers of at least 1");
    if (model.rope_high_frequency_factor <= model.rope_low_frequency_factor)
      rope.refuse("high_freq_factor", "numbers above low_freq_factor");
  } else {
    rope.refuse(kind, "default, linear, llama3");
  }
}

// Tokens that a layer attends to: in all layers, or, 0, no limit in any.
void read_window(const Keys& keys, const std::string& type, ModelSpec& model) {
  const bool is_qwen = type == "qwen2" || type == "qwen3";
  const char* const limit = "sliding_window";
  if (type == "mistral" || (is_qwen && keys.flag("use_sliding_window", false))) {
    // null: none; not there: what the first of these models had.
    model.window = keys.named(limit) ? keys.count(limit, 0) : 4096;
    if (keys.given(limit) && model.window == 0) keys.refuse(limit, "at least 1, or null");
  }
  if (keys.given("layer_types")) {
    const json& types = keys["layer_types"];
    const auto all = [&](const char* kind) {
      return types.is_array() && types.size() == static_cast<std::size_t>(model.layers) &&
             std::all_of(types.begin(), types.end(), [&](const json& t) { return t == kind; });
    };
    const bool none = all("full_attention");
    const bool agrees =
        none ? is_qwen || model.window == 0 : all("sliding_attention") && model.window > 0;
    if (!agrees)
      keys.refuse("layer_types",
                  "full_attention for every layer, or sliding_attention for every layer and a "
                  "sliding_window");
    if (none) model.window = 0;
  } else if (is_qwen && model.window > 0) {
    const std::int64_t full = keys.count("max_window_layers", 28);
    if (full > 0 && full < model.layers)
      keys.refuse(
          "max_window_layers",
          fmt::format("0, or {} and more: a window in all layers, or in none", model.layers));
    if (full > 0) model.window = 0;
  }
}

void read_llama(const Keys& keys, const std::string& type, ModelSpec& model) {
  model.architecture = Architecture::llama;
  model.layers = keys.count("num_hidden_layers");
  model.hidden = keys.count("hidden_size");
  model.ffn = keys.count("intermediate_size");
  model.heads = keys.count("num_attention_heads");
  // null, and for a llama left out: as many as of queries.
  if (type != "llama" && !keys.named("num_key_value_heads")) keys.require("num_key_value_heads");
  model.kv_heads = keys.count("num_key_value_heads", model.heads);
  model.positions = keys.count("max_position_embeddings");
  const std::int64_t share = model.heads > 0 ? model.hidden / model.heads : 0;
  model.head_width = keys.count("head_dim", type == "qwen3" ? 128 : share);
  if (model.head_width == share && share * model.heads == model.hidden) model.head_width = 0;
  model.norm_epsilon = keys.number("rms_norm_eps", 1e-6);
  model.tied = keys.flag("tie_word_embeddings", false);
  model.qkv_bias = type == "qwen2";
  model.qk_norm = type == "qwen3";
  keys.only("hidden_act", {"silu", "swish"});
  // A bias of the output projection, too.
  if (type == "llama" || type == "qwen3") keys.only("attention_bias", false);
  keys.only("mlp_bias", false);
  keys.only("use_mrope", false);
  read_rope(keys, model);
  read_window(keys, type, model);
}

// What config.json calls a key of a model.
std::string key_in_config(const std::string& key, bool is_gpt) {
  static const std::map<std::string, std::pair<const char*, const char*>> names = {
      {"layers", {"n_layer", "num_hidden_layers"}},
      {"hidden", {"n_embd", "hidden_size"}},
      {"heads", {"n_head", "num_attention_heads"}},
      {"kv_heads", {"n_head", "num_key_value_heads"}},
      {"head_width", {"n_head", "head_dim"}},
      {"ffn", {"n_inner", "intermediate_size"}},
      {"vocabulary", {"vocab_size", "vocab_size"}},
      {"positions", {"n_positions", "max_position_embeddings"}},
      {"norm_epsilon", {"layer_norm_epsilon", "rms_norm_eps"}},
      {"window", {"sliding_window", "sliding_window"}}};
  const auto found = names.find(key);
  if (found == names.end()) return key;
  return is_gpt ? found->second.first : found->second.second;
}

json parse_object(const std::string& text, const std::string& origin) {
  const char* const hint = "config.json of a model on Hugging Face is one JSON object";
  if (nested_deeper(text, most_nesting))
    throw InputError(origin, 0, "it is nested too deeply", hint);
  json values;
  try {
    values = json::parse(text);
  } catch (const json::exception& error) {
    throw InputError(origin, 0, std::string("it is not JSON: ") + error.what(), hint);
  }
  if (!values.is_object()) throw InputError(origin, 0, "it is not a JSON object", hint);
  return values;
}

nlohmann::ordered_json gpt_config(const ModelSpec& model) {
  nlohmann::ordered_json config = {{"architectures", {"GPT2LMHeadModel"}},
                                   {"model_type", "gpt2"},
                                   {"vocab_size", model.vocabulary},
                                   {"n_positions", model.positions},
                                   {"n_embd", model.hidden},
                                   {"n_layer", model.layers},
                                   {"n_head", model.heads},
                                   {"n_inner", nullptr},
                                   {"activation_function", "gelu_new"},
                                   {"layer_norm_epsilon", model.norm_epsilon},
                                   {"attn_pdrop", 0.0},
                                   {"embd_pdrop", 0.0},
                                   {"resid_pdrop", 0.0},
                                   {"tie_word_embeddings", true}};
  // transformers' own default, which a smaller vocabulary does not have.
  constexpr std::int64_t end_of_text = 50256;
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    if (model.vocabulary > end_of_text)
      config[key] = end_of_text;
    else
      config[key] = nullptr;
  }
  return config;
}

const Family& llama_family(const ModelSpec& model) {
  if (!has_hugging_face_architecture(model))
    throw InputError("no architecture of transformers has both qkv_bias and qk_norm",
                     "it can be trained here, and not be written as a model of Hugging Face's");
  if (model.qk_norm) return families[4];
  if (model.qkv_bias) return families[3];
  // A llama of transformers has heads that share out its width.
  const bool odd = model.heads > 0 && model.hidden % model.heads != 0;
  return model.window > 0 || odd ? families[2] : families[1];
}

nlohmann::ordered_json llama_config(const ModelSpec& model) {
  const Family& family = llama_family(model);
  nlohmann::ordered_json config = {{"architectures", {family.architecture}},
                                   {"model_type", family.type},
                                   {"vocab_size", model.vocabulary},
                                   {"max_position_embeddings", model.positions},
                                   {"hidden_size", model.hidden},
                                   {"intermediate_size", model.ffn},
                                   {"num_hidden_layers", model.layers},
                                   {"num_attention_heads", model.heads},
                                   {"num_key_value_heads", model.kv_heads},
                                   {"head_dim", model.width_of_head()},
                                   {"hidden_act", "silu"},
                                   {"rms_norm_eps", model.norm_epsilon},
                                   {"rope_theta", model.rope_theta},
                                   {"rope_scaling", nullptr},
                                   {"tie_word_embeddings", model.tied},
                                   {"bos_token_id", nullptr},
                                   {"eos_token_id", nullptr}};
  if (model.rope_scaling == RopeScaling::linear) {
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", model.rope_factor}};
  } else if (model.rope_scaling == RopeScaling::llama3) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", model.rope_factor},
                              {"low_freq_factor", model.rope_low_frequency_factor},
                              {"high_freq_factor", model.rope_high_frequency_factor},
                              {"original_max_position_embeddings", model.rope_original_positions}};
  }
  if (family.type == std::string("mistral")) {
    config["sliding_window"] = nullptr;
    if (model.window > 0) config["sliding_window"] = model.window;
  } else if (model.window > 0) {
    config["use_sliding_window"] = true;
    config["sliding_window"] = model.window;
    config["max_window_layers"] = 0;
  }
  return config;
}

}  // namespace

std::vector<std::string> hugging_face_architectures() {
  std::vector<std::string> names;
  for (const Family& family : families) names.emplace_back(family.architecture);
  return names;
}

ModelSpec parse_hugging_face_config(const std::string& text, const std::string& origin,
                                    const std::string& name) {
  const json values = parse_object(text, origin);
  const Keys keys(values, origin);
  const Family& family = family_of(keys);
  if (keys.given("quantization_config"))
    keys.refuse("quantization_config", "weights in F32, F16 and BF16");
  ModelSpec model;
  model.name = name;
  model.source = fmt::format("config.json of Hugging Face, {}", family.architecture);
  model.vocabulary = keys.count("vocab_size");
  const bool is_gpt = family.type == std::string("gpt2");
  if (is_gpt) {
    read_gpt(keys, model);
  } else {
    read_llama(keys, family.type, model);
  }
  if (const auto problem = find_problem(model)) {
    throw InputError(origin, 0,
                     fmt::format("{}: {}", key_in_config(problem->key, is_gpt), problem->what),
                     problem->hint);
  }
  return model;
}

bool has_hugging_face_architecture(const ModelSpec& model) {
  return model.architecture == Architecture::gpt || !model.qkv_bias || !model.qk_norm;
}

std::string hugging_face_config(const ModelSpec& model, const std::string& type,
                                const std::optional<TextEnds>& ends) {
  nlohmann::ordered_json config =
      model.architecture == Architecture::gpt ? gpt_config(model) : llama_config(model);
  if (ends) {
    config["bos_token_id"] = nullptr;
    config["eos_token_id"] = nullptr;
    if (ends->begin) config["bos_token_id"] = *ends->begin;
    if (ends->ends.size() == 1) config["eos_token_id"] = ends->ends.front();
    if (ends->ends.size() > 1) config["eos_token_id"] = ends->ends;
  }
  config["torch_dtype"] = type;
  return config.dump(2) + "\n";
}

std::string hugging_face_config(const std::string& text, const std::string& type) {
  auto config = nlohmann::ordered_json::parse(text);
  // Where both are there, transformers goes by dtype, and older versions by torch_dtype.
  const bool newer = config.contains("dtype");
  if (newer) config["dtype"] = type;
  if (!newer || config.contains("torch_dtype")) config["torch_dtype"] = type;
  return config.dump(2) + "\n";
}

}  // namespace spillway
