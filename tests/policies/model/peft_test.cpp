#include "policies/model/peft.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"

using namespace spillway;
using nlohmann::json;

namespace {

ModelSpec model_with(const std::string& name, const std::vector<std::string>& settings) {
  return load_model(name, settings);
}

std::string refusal(const ModelSpec& base, const json& config) {
  try {
    parse_adapter_config(config.dump(), "adapter_config.json", base);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

json usual() {
  return {{"peft_type", "LORA"},
          {"r", 8},
          {"lora_alpha", 16},
          {"target_modules", {"q_proj", "v_proj"}}};
}

}  // namespace

TEST_CASE("what is written as adapter_config.json is read again") {
  const ModelSpec llama = model_with(
      "llama-tiny",
      {"lora_rank=4", "lora_alpha=6", "lora_dropout=0.25", "lora_targets=q_proj,v_proj"});
  const auto read =
      parse_adapter_config(adapter_config(llama, "/some/model"), "x", base_model(llama));
  CHECK(model_with("llama-tiny", read) == llama);
  const json written = json::parse(adapter_config(llama, "/some/model"));
  CHECK(written["base_model_name_or_path"] == "/some/model");
  CHECK(written["fan_in_fan_out"] == false);
  CHECK(written["target_modules"] == json::array({"q_proj", "v_proj"}));
  const ModelSpec gpt = model_with("gpt-tiny", {"lora_rank=4", "lora_targets=attn.c_proj"});
  const json of_gpt = json::parse(adapter_config(gpt, ""));
  CHECK(of_gpt["fan_in_fan_out"] == true);  // its matrices lie transposed in files
  CHECK(of_gpt["target_modules"] == json::array({"attn.c_proj"}));
}

TEST_CASE("an adapter_config.json is told where its model is by now, and keeps all else") {
  const std::string text = R"({"r": 8, "base_model_name_or_path": "old", "peft_type": "LORA"})";
  const json changed = json::parse(adapter_config_beside(text, "x", "/new/place"));
  CHECK(changed ==
        json{{"r", 8}, {"base_model_name_or_path", "/new/place"}, {"peft_type", "LORA"}});
  CHECK_THROWS_AS(adapter_config_beside("[", "x", "y"), InputError);
}

TEST_CASE("matrices that PEFT names by their whole paths are those of all layers, or refused") {
  const ModelSpec base = model_with("llama-tiny", {"layers=2"});
  json config = usual();
  config["target_modules"] = {"model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"};
  CHECK(parse_adapter_config(config.dump(), "x", base).back() == "lora_targets=mlp.up_proj");
  config["target_modules"] = {"model.layers.1.mlp.up_proj"};
  CHECK(refusal(base, config).find("target_modules") != std::string::npos);
  config["target_modules"] = "all-linear";
  CHECK(parse_adapter_config(config.dump(), "x", base).back() == "lora_targets=all-linear");
}

TEST_CASE("what adapters do not do here is refused with the file and the key") {
  const ModelSpec base = model_with("llama-tiny", {});
  CHECK(refusal(base, usual()).empty());
  const std::vector<std::pair<const char*, json>> others = {{"peft_type", "LOHA"},
                                                            {"task_type", "SEQ_CLS"},
                                                            {"bias", "all"},
                                                            {"use_rslora", true},
                                                            {"use_dora", true},
                                                            {"modules_to_save", {"lm_head"}},
                                                            {"layers_to_transform", {1}},
                                                            {"rank_pattern", {{"q_proj", 4}}},
                                                            {"alpha_pattern", {{"q_proj", 4}}},
                                                            {"exclude_modules", "q_proj"},
                                                            {"init_lora_weights", "pissa"},
                                                            {"target_modules", "q_proj|v_proj"},
                                                            {"target_modules", {"lm_head"}},
                                                            {"target_modules", json::array()},
                                                            {"r", 0},
                                                            {"r", "8"},
                                                            {"r", base.hidden + 1},
                                                            {"r", 18446744073709551615u},
                                                            {"lora_alpha", -1},
                                                            {"lora_alpha", 1e7},
                                                            {"lora_dropout", 1},
                                                            {"some_key_to_come", {{"a", 1}}}};
  for (const auto& [key, value] : others) {
    json config = usual();
    config[key] = value;
    INFO(key << " " << value);
    const std::string message = refusal(base, config);
    CHECK(message.find("adapter_config.json") != std::string::npos);
    CHECK(message.find(key) != std::string::npos);
  }
  for (const char* key : {"use_dora", "megatron_config", "layers_pattern", "some_key_to_come"}) {
    json config = usual();
    config[key] = nullptr;
    CHECK(refusal(base, config).empty());
  }
  CHECK_THROWS_AS(parse_adapter_config("[1]", "x", base), InputError);
  CHECK_THROWS_AS(parse_adapter_config("{", "x", base), InputError);
}

TEST_CASE("adapters are named in a line: alpha is twice the rank, all matrices have them") {
  const auto read = [](const std::string& text) {
    return model_with("llama-tiny", lora_overrides(text));
  };
  CHECK(read("rank=16").lora_rank == 16);
  CHECK(read("rank=16").lora_alpha == 32);
  CHECK(read("rank=16").lora_targets == "all-linear");
  const ModelSpec all = read("rank=4,alpha=3,dropout=0.05,targets=q_proj+v_proj");
  CHECK(all.lora_alpha == 3);
  CHECK(all.lora_dropout == 0.05);
  CHECK(all.lora_targets == "q_proj,v_proj");
  for (const char* text :
       {"", "16", "rank=", "rank=0", "rank=x", "alpha=2", "rank=4,rank=5", "rank=4,bias=all"}) {
    INFO(text);
    CHECK_THROWS_AS(lora_overrides(text), InputError);
  }
  CHECK_THROWS_AS(read("rank=4,targets=lm_head"), InputError);
}
