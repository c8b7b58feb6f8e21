#include "policies/model/hugging_face.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "policies/model/hugging_face_tensors.hpp"
#include "tests/policies/input_error.hpp"

using namespace spillway;
using nlohmann::json;

namespace {

// As of Qwen/Qwen2.5-0.5B, in short.
json qwen2() {
  return {{"architectures", {"Qwen2ForCausalLM"}},
          {"model_type", "qwen2"},
          {"attention_dropout", 0.0},
          {"hidden_act", "silu"},
          {"hidden_size", 896},
          {"intermediate_size", 4864},
          {"max_position_embeddings", 32768},
          {"max_window_layers", 24},
          {"num_attention_heads", 14},
          {"num_hidden_layers", 24},
          {"num_key_value_heads", 2},
          {"rms_norm_eps", 1e-06},
          {"rope_theta", 1000000.0},
          {"sliding_window", 32768},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"},
          {"use_sliding_window", false},
          {"vocab_size", 151936}};
}

// As of meta-llama/Llama-3.2-1B, in short.
json llama3() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"attention_bias", false},
          {"head_dim", 64},
          {"hidden_act", "silu"},
          {"hidden_size", 2048},
          {"intermediate_size", 8192},
          {"max_position_embeddings", 131072},
          {"mlp_bias", false},
          {"num_attention_heads", 32},
          {"num_hidden_layers", 16},
          {"num_key_value_heads", 8},
          {"pretraining_tp", 1},
          {"rms_norm_eps", 1e-05},
          {"rope_scaling",
           {{"factor", 32.0},
            {"high_freq_factor", 4.0},
            {"low_freq_factor", 1.0},
            {"original_max_position_embeddings", 8192},
            {"rope_type", "llama3"}}},
          {"rope_theta", 500000.0},
          {"tie_word_embeddings", true},
          {"vocab_size", 128256}};
}

json mistral() {
  return {{"architectures", {"MistralForCausalLM"}},
          {"model_type", "mistral"},
          {"hidden_act", "silu"},
          {"hidden_size", 4096},
          {"intermediate_size", 14336},
          {"max_position_embeddings", 32768},
          {"num_attention_heads", 32},
          {"num_hidden_layers", 32},
          {"num_key_value_heads", 8},
          {"rms_norm_eps", 1e-05},
          {"rope_theta", 10000.0},
          {"sliding_window", 4096},
          {"tie_word_embeddings", false},
          {"vocab_size", 32000}};
}

json qwen3() {
  json config = qwen2();
  config.update({{"architectures", {"Qwen3ForCausalLM"}},
                 {"model_type", "qwen3"},
                 {"attention_bias", false},
                 {"head_dim", 128},
                 {"hidden_size", 1024},
                 {"num_attention_heads", 16},
                 {"num_key_value_heads", 8}});
  return config;
}

json gpt2() {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"attn_pdrop", 0.1},
          {"layer_norm_epsilon", 1e-05},
          {"n_ctx", 1024},
          {"n_embd", 768},
          {"n_head", 12},
          {"n_layer", 12},
          {"n_positions", 1024},
          {"vocab_size", 50257}};
}

ModelSpec read(const json& config) {
  return parse_hugging_face_config(config.dump(), "config.json", "model");
}

json with(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

json without(json config, const char* key) {
  config.erase(key);
  return config;
}

}  // namespace

TEST_CASE("a Llama 3.2 is read with its scaled rope and tied head") {
  const ModelSpec model = read(llama3());
  CHECK(model.architecture == Architecture::llama);
  CHECK(model.layers == 16);
  CHECK(model.hidden == 2048);
  CHECK(model.heads == 32);
  CHECK(model.kv_heads == 8);
  CHECK(model.width_of_head() == 64);
  CHECK(model.ffn == 8192);
  CHECK(model.vocabulary == 128256);
  CHECK(model.positions == 131072);
  CHECK(model.norm_epsilon == 1e-5);
  CHECK(model.rope_theta == 500000);
  CHECK(model.rope_scaling == RopeScaling::llama3);
  CHECK(model.rope_factor == 32);
  CHECK(model.rope_low_frequency_factor == 1);
  CHECK(model.rope_high_frequency_factor == 4);
  CHECK(model.rope_original_positions == 8192);
  CHECK(model.tied);
  CHECK_FALSE(model.qkv_bias);
  CHECK_FALSE(model.qk_norm);
  CHECK(model.window == 0);
  // Counted by transformers: 1,235,814,400.
  std::int64_t parameters = 0;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    for (const TensorLayout& tensor : unit_layout(model, unit)) parameters += tensor.elements();
  }
  CHECK(parameters == 1'235'814'400);
}

TEST_CASE("Qwen2, Qwen3, Mistral and GPT-2 differ as transformers has them") {
  const ModelSpec two = read(qwen2()), three = read(qwen3()), wide = read(mistral()),
                  gpt = read(gpt2());
  CHECK(two.qkv_bias);
  CHECK_FALSE(two.qk_norm);
  CHECK(two.tied);
  CHECK(two.norm_epsilon == 1e-6);
  CHECK(two.window == 0);
  CHECK_FALSE(three.qkv_bias);
  CHECK(three.qk_norm);
  CHECK(three.width_of_head() == 128);  // 16 heads of 128 where hidden is 1024
  CHECK(wide.window == 4096);
  CHECK_FALSE(wide.tied);
  CHECK(gpt.architecture == Architecture::gpt);
  CHECK(gpt.ffn == 3072);
  CHECK(gpt.kv_heads == 12);
  CHECK(gpt.positions == 1024);
  CHECK(gpt.tied);
}

TEST_CASE("keys that are left out have each architecture's defaults") {
  CHECK(read(without(llama3(), "num_key_value_heads")).kv_heads == 32);
  CHECK_FALSE(read(without(llama3(), "tie_word_embeddings")).tied);
  CHECK(read(without(llama3(), "rms_norm_eps")).norm_epsilon == 1e-6);
  CHECK(read(without(without(llama3(), "rope_theta"), "rope_scaling")).rope_theta == 10000);
  CHECK(read(without(llama3(), "head_dim")).width_of_head() == 64);
  CHECK(read(with(llama3(), "head_dim", 128)).width_of_head() == 128);
  CHECK(read(without(qwen3(), "head_dim")).width_of_head() == 128);
  CHECK(read(without(mistral(), "sliding_window")).window == 4096);
  CHECK(read(with(mistral(), "sliding_window", nullptr)).window == 0);
  CHECK(read(without(gpt2(), "layer_norm_epsilon")).norm_epsilon == 1e-5);
  CHECK(read(with(gpt2(), "n_inner", nullptr)).ffn == 3072);
  CHECK(read(without(llama3(), "architectures")).layers == 16);  // by model_type
}

TEST_CASE("rope is read from either of transformers' layouts") {
  json newer = without(without(llama3(), "rope_theta"), "rope_scaling");
  newer["rope_parameters"] = llama3()["rope_scaling"];
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  CHECK(model_to_toml(read(newer)) == model_to_toml(read(llama3())));
  const ModelSpec linear =
      read(with(llama3(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}));
  CHECK(linear.rope_scaling == RopeScaling::linear);
  CHECK(linear.rope_factor == 2);
  CHECK(read(with(llama3(), "rope_scaling", {{"rope_type", "default"}})).rope_scaling ==
        RopeScaling::none);
  CHECK(read(with(llama3(), "rope_scaling", nullptr)).rope_scaling == RopeScaling::none);
}

TEST_CASE("the positions that llama3's rope was made for are read as transformers does") {
  const char* const key = "original_max_position_embeddings";
  CHECK(read(with(llama3(), key, 4096)).rope_original_positions ==
        4096);  // beside the table: first
  CHECK(read(with(llama3(), key, nullptr)).rope_original_positions == 8192);
  const json table = without(llama3()["rope_scaling"], key);
  CHECK(read(with(llama3(), "rope_scaling", table)).rope_original_positions == 131072);
  CHECK(read(with(with(llama3(), "rope_scaling", table), key, 4096)).rope_original_positions ==
        4096);
}

TEST_CASE("a window holds for all layers or for none") {
  const json windowed = with(qwen2(), "use_sliding_window", true);
  CHECK(read(windowed).window == 0);  // from layer 24 of 24 on
  CHECK(read(with(with(windowed, "max_window_layers", 0), "sliding_window", nullptr)).window == 0);
  CHECK(read(with(windowed, "max_window_layers", 0)).window == 32768);
  CHECK_THROWS_AS(read(with(windowed, "max_window_layers", 12)), InputError);
  // Left out it is 28: the first 28 of 32 layers would have no window.
  const json deeper = with(without(windowed, "max_window_layers"), "num_hidden_layers", 32);
  check_error([&] { read(deeper); }, "config.json: max_window_layers is left out", "0, or 32");
  const json all = std::vector<std::string>(24, "sliding_attention");
  const json none = std::vector<std::string>(24, "full_attention");
  CHECK(read(with(windowed, "layer_types", all)).window == 32768);
  CHECK(read(with(windowed, "layer_types", none)).window == 0);
  json mixed = none;
  mixed[3] = "sliding_attention";
  CHECK_THROWS_AS(read(with(windowed, "layer_types", mixed)), InputError);
  CHECK_THROWS_AS(read(with(windowed, "layer_types", {"full_attention"})), InputError);
  const auto layers = mistral()["num_hidden_layers"].get<std::size_t>();
  const json full = std::vector<std::string>(layers, "full_attention");
  CHECK_THROWS_AS(read(with(mistral(), "layer_types", full)), InputError);
  CHECK(read(with(with(mistral(), "layer_types", full), "sliding_window", nullptr)).window == 0);
}

TEST_CASE("what is not supported is refused with the file, the key, its value and what is") {
  check_error([] { read(with(llama3(), "architectures", {"MixtralForCausalLM"})); },
              R"(config.json: architectures is ["MixtralForCausalLM"])",
              "GPT2LMHeadModel, LlamaForCausalLM");
  check_error([] { read(with(llama3(), "hidden_act", "gelu")); },
              R"(config.json: hidden_act is "gelu")", "supported: silu");
  check_error([] { read(with(llama3(), "attention_bias", true)); },
              "config.json: attention_bias is true", "supported: false");
  check_error(
      [] {
        read(with(llama3(), "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}));
      },
      R"(config.json: rope_scaling.rope_type is "yarn")", "supported: default, linear, llama3");
  check_error([] { read(with(llama3(), "hidden_size", "wide")); },
              R"(config.json: hidden_size is "wide")", "whole numbers");
  check_error([] { read(without(llama3(), "hidden_size")); }, "config.json: hidden_size is missing",
              "whole");
  check_error([] { read(with(llama3(), "num_key_value_heads", 7)); },
              "config.json: num_key_value_heads: 7 does not divide", "");
  // The table that is there is named.
  const json modern = with(without(without(llama3(), "rope_scaling"), "rope_theta"),
                           "rope_parameters", {{"rope_type", "linear"}, {"factor", 0.5}});
  check_error([&] { read(modern); }, "config.json: rope_parameters.factor is 0.5",
              "numbers of at least 1");
  check_error(
      [&] {
        read(with(modern, "rope_parameters", {{"rope_theta", 0.5}}));
      },
      "config.json: rope_parameters.rope_theta is 0.5", "numbers of at least 1");
  check_error([] { read(with(llama3(), "model_type", "qwen2")); },
              R"(config.json: model_type is "qwen2")", "llama");
  check_error([] { read(with(gpt2(), "n_inner", 1000)); }, "config.json: n_inner is 1000", "3072");
}

TEST_CASE(
    "each key that would change the arithmetic of a model is refused where it is not 1, off "
    "or what Spillway computes") {
  const std::vector<std::pair<json, std::map<std::string, json>>> refused = {
      {llama3(),
       {{"mlp_bias", true},
        {"partial_rotary_factor", 0.5},
        {"rms_norm_eps", 0},
        {"rope_theta", -1},
        {"quantization_config", {{"bits", 4}}},
        {"num_hidden_layers", -4},
        {"vocab_size", 0},
        {"tie_word_embeddings", "yes"},
        {"layer_types", {"full_attention", "chunked_attention"}},
        {"hidden_size", 1e30},
        {"num_attention_heads", 18446744073709551615u}}},
      {gpt2(),
       {{"activation_function", "gelu"},
        {"scale_attn_weights", false},
        {"scale_attn_by_inverse_layer_idx", true},
        {"add_cross_attention", true},
        {"tie_word_embeddings", false},
        {"n_embd", 9223372036854775807}}},
      {qwen2(), {{"use_mrope", true}}},
      {mistral(), {{"sliding_window", 0}}}};
  for (const auto& [config, values] : refused) {
    CHECK_NOTHROW(read(config));
    for (const auto& [key, value] : values) {
      INFO(key << " = " << value.dump());
      CHECK_THROWS_AS(read(with(config, key.c_str(), value)), InputError);
    }
  }
}

TEST_CASE("what is no JSON object, or nested beyond reason, is refused") {
  const auto refuses = [](const std::string& text) {
    CHECK_THROWS_AS(parse_hugging_face_config(text, "config.json", "m"), InputError);
  };
  for (const char* text : {"", "[]", "{", "null", "{\"a\":NaN}"}) refuses(text);
  refuses("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}");
}

TEST_CASE("what transformers takes of a Qwen2 is read: heads of any width, as many as of queries") {
  CHECK(read(with(qwen2(), "head_dim", 128)).width_of_head() == 128);
  CHECK(read(with(qwen2(), "num_key_value_heads", nullptr)).kv_heads == read(qwen2()).heads);
  check_error([] { read(without(qwen2(), "num_key_value_heads")); },
              "config.json: num_key_value_heads is missing", "");
}

TEST_CASE("a model is written as an architecture that computes it, or is refused") {
  ModelSpec model = read(llama3());
  model.head_width = model.width_of_head();
  model.hidden += 8;  // heads do not share it out: a llama of transformers refuses that
  const json odd = json::parse(hugging_face_config(model, "float32"));
  CHECK(odd["architectures"][0] == "MistralForCausalLM");
  CHECK(odd["sliding_window"].is_null());
  CHECK(read(odd).head_width == model.head_width);
  ModelSpec both = read(qwen3());
  CHECK(has_hugging_face_architecture(both));
  both.qkv_bias = true;
  CHECK_FALSE(has_hugging_face_architecture(both));
  check_error([&] { hugging_face_config(both, "float32"); },
              "no architecture of transformers has both qkv_bias and qk_norm", "");
}

TEST_CASE("a model written as config.json is read as the same model") {
  for (const json& config :
       {llama3(), qwen2(), qwen3(), mistral(), gpt2(),
        with(llama3(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}),
        with(with(qwen2(), "use_sliding_window", true), "max_window_layers", 0)}) {
    const ModelSpec model = read(config);
    const std::string written = hugging_face_config(model, "float32");
    CHECK(model_to_toml(parse_hugging_face_config(written, "w", "model")) == model_to_toml(model));
    CHECK(json::parse(written)["torch_dtype"] == "float32");
  }
  // The tokenizer's tokens, where they are known.
  const auto ends = [&](const json& config, const TextEnds& known) {
    const json written = json::parse(hugging_face_config(read(config), "float32", known));
    return json{written.at("bos_token_id"), written.at("eos_token_id")};
  };
  CHECK(ends(llama3(), {}) == json{nullptr, nullptr});
  CHECK(ends(llama3(), {3, {4}}) == json{3, 4});
  CHECK(ends(gpt2(), {{}, {4, 5}}) == json{nullptr, {4, 5}});
  CHECK(json::parse(hugging_face_config(read(gpt2()), "float32")).at("eos_token_id") == 50256);
  // Of the configuration that a model came with nothing but the type changes.
  const json again = json::parse(hugging_face_config(llama3().dump(), "float32"));
  CHECK(again == with(llama3(), "torch_dtype", "float32"));
  // transformers goes by dtype where both keys are there.
  const json newer = with(without(llama3(), "torch_dtype"), "dtype", "bfloat16");
  CHECK(json::parse(hugging_face_config(newer.dump(), "float32")) ==
        with(newer, "dtype", "float32"));
  const json both = with(newer, "torch_dtype", "bfloat16");
  CHECK(json::parse(hugging_face_config(both.dump(), "float32")) ==
        with(with(both, "dtype", "float32"), "torch_dtype", "float32"));
  const json neither = without(llama3(), "torch_dtype");
  CHECK(json::parse(hugging_face_config(neither.dump(), "float32")) ==
        with(neither, "torch_dtype", "float32"));
}

TEST_CASE("tensors have transformers' names and shapes") {
  const ModelSpec gpt = read(gpt2()), llama = read(mistral());
  const auto first = hugging_face_tensors(gpt, 0);
  CHECK(first[2].name == "transformer.h.0.attn.c_attn.weight");
  CHECK(first[2].transposed);
  CHECK(first[2].shape == std::vector<std::int64_t>{768, 2304});
  CHECK(hugging_face_tensors(gpt, 12)[0].name == "transformer.wte.weight");
  CHECK(hugging_face_tensors(gpt, 12)[0].shape == std::vector<std::int64_t>{50257, 768});
  CHECK(hugging_face_tensors(llama, 3)[0].name == "model.layers.3.input_layernorm.weight");
  CHECK(hugging_face_tensors(llama, 3)[0].shape == std::vector<std::int64_t>{4096});
  CHECK(hugging_face_tensors(llama, 32)[0].name == "model.embed_tokens.weight");
  CHECK(hugging_face_tensors(llama, 33)[1].name == "lm_head.weight");
  CHECK(full_tensor_name(gpt, "h.0.ln_1.bias") == "transformer.h.0.ln_1.bias");
  CHECK(full_tensor_name(llama, "norm.weight") == "model.norm.weight");
  CHECK(full_tensor_name(llama, "lm_head.weight") == "lm_head.weight");
  CHECK(is_ignored_tensor(gpt, "transformer.h.0.attn.bias"));
  CHECK_FALSE(is_ignored_tensor(gpt, "transformer.h.0.attn.c_attn.bias"));
  CHECK(is_ignored_tensor(llama, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  CHECK_FALSE(is_ignored_tensor(llama, "lm_head.weight"));
  CHECK(is_ignored_tensor(read(llama3()), "lm_head.weight"));
}
