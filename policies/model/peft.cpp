#include "policies/model/peft.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/text.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

using nlohmann::json;

std::string shown(const json& value) {
  constexpr std::size_t longest = 100;
  const std::string text = printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
  return text.size() > longest ? text.substr(0, longest) + " ..." : text;
}

// Whether a key says nothing: null, false, or an empty list, table or text.
bool says_nothing(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

// An adapter_config.json. Keys that no version of PEFT has yet are refused unless they say nothing.
class AdapterKeys {
 public:
  AdapterKeys(const std::string& text, const std::string& origin) : origin_(origin) {
    if (nested_deeper(text, most_nesting)) fail("is nested too deeply");
    try {
      values_ = json::parse(text);
    } catch (const json::exception& error) {
      fail(std::string("is not JSON: ") + error.what());
    }
    if (!values_.is_object()) fail("is not a table of keys");
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& supported) const {
    const std::string found = values_.contains(key) ? "is " + shown(values_[key]) : "is left out";
    throw InputError(origin_, 0, fmt::format("{} {}", printable(key), found),
                     "supported: " + supported);
  }
  bool given(const char* key) const { return values_.contains(key) && !values_[key].is_null(); }
  const json& operator[](const char* key) const { return values_.at(key); }
  double number(const char* key, double usual) const {
    if (!given(key)) return usual;
    if (!values_[key].is_number()) refuse(key, "a number");
    return values_[key].get<double>();
  }
  void require_one_of(const char* key, const std::vector<json>& values,
                      const std::string& supported) const {
    if (!values_.contains(key)) return;
    if (std::find(values.begin(), values.end(), values_[key]) == values.end())
      refuse(key, supported);
  }
  // All keys but these say nothing.
  void require_nothing_but(const std::set<std::string>& known) const {
    for (const auto& [key, value] : values_.items()) {
      if (!known.contains(key) && !says_nothing(value)) refuse(key, "leaving it out");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(origin_, 0, what, "PEFT's save_pretrained() writes it: copy it again");
  }
  std::string origin_;
  json values_;
};

// Keys that are read below, and those that change nothing of what an adapter computes.
const std::set<std::string>& known_keys() {
  static const std::set<std::string> keys = {"peft_type",
                                             "task_type",
                                             "bias",
                                             "r",
                                             "lora_alpha",
                                             "lora_dropout",
                                             "target_modules",
                                             "init_lora_weights",
                                             "auto_mapping",
                                             "base_model_name_or_path",
                                             "fan_in_fan_out",
                                             "inference_mode",
                                             "megatron_core",
                                             "peft_version",
                                             "qalora_group_size",
                                             "revision"};
  return keys;
}

// The names in target_modules without the layer that PEFT may put before them: where it lists few
// matrices it names each by its whole path, "model.layers.3.self_attn.q_proj", and then every layer
// must have the same ones.
std::string targets_of(const AdapterKeys& keys, const ModelSpec& base) {
  const char* const key = "target_modules";
  const std::string supported =
      fmt::format("\"{}\" or a list of {}", all_linear, fmt::join(lora_target_names(base), ", "));
  if (keys.given(key) && keys[key] == all_linear) return std::string(all_linear);
  if (!keys.given(key) || !keys[key].is_array() || keys[key].empty()) keys.refuse(key, supported);
  std::set<std::string> names;
  std::map<std::string, std::set<std::int64_t>> layers;  // by name, where it has one before it
  for (const json& value : keys[key]) {
    if (!value.is_string()) keys.refuse(key, supported);
    const std::string name = value.get<std::string>();
    const char* const list = base.architecture == Architecture::gpt ? "h." : "layers.";
    const std::size_t at = name.find(list);
    std::int64_t layer = -1;
    const char* const digits = name.data() + std::min(name.size(), at + std::strlen(list));
    const auto [end, error] = std::from_chars(digits, name.data() + name.size(), layer);
    if (at == std::string::npos || error != std::errc() || *end != '.') {
      names.insert(name);
    } else {
      layers[std::string(end + 1)].insert(layer);
    }
  }
  for (const auto& [name, of] : layers) {
    const bool all = static_cast<std::int64_t>(of.size()) == base.layers && *of.begin() == 0 &&
                     *of.rbegin() == base.layers - 1;
    if (!all) keys.refuse(key, "the same matrices in every layer");
    names.insert(name);
  }
  const std::vector<std::string> possible = lora_target_names(base);
  for (const std::string& name : names) {
    if (std::find(possible.begin(), possible.end(), name) == possible.end())
      keys.refuse(key, supported);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

}  // namespace

std::vector<std::string> parse_adapter_config(const std::string& text, const std::string& origin,
                                              const ModelSpec& base) {
  const AdapterKeys keys(text, origin);
  if (!keys.given("peft_type") || keys["peft_type"] != "LORA") keys.refuse("peft_type", "\"LORA\"");
  keys.require_one_of("task_type", {nullptr, "CAUSAL_LM"}, "\"CAUSAL_LM\"");
  keys.require_one_of("bias", {"none"}, "\"none\"");
  // Others take from the model's own matrices what they put into the adapters.
  keys.require_one_of("init_lora_weights", {nullptr, true, false, "gaussian", "orthogonal", "eva"},
                      "true, false, \"gaussian\", \"orthogonal\", \"eva\"");
  keys.require_nothing_but(known_keys());
  if (!keys.given("r") || !keys["r"].is_number_integer() || keys["r"] < 1)
    keys.refuse("r", "a whole number of at least 1");
  const double alpha = keys.number("lora_alpha", 8), dropout = keys.number("lora_dropout", 0);
  if (keys["r"] > base.hidden)
    keys.refuse("r", fmt::format("up to {}, the model's hidden size", base.hidden));
  if (!(alpha > 0) || alpha > most_lora_alpha)
    keys.refuse("lora_alpha", fmt::format("a number above 0, up to {}", most_lora_alpha));
  if (!(dropout >= 0) || dropout >= 1) keys.refuse("lora_dropout", "a number from 0 to below 1");
  return {"lora_rank=" + keys["r"].dump(), fmt::format("lora_alpha={}", alpha),
          fmt::format("lora_dropout={}", dropout), "lora_targets=" + targets_of(keys, base)};
}

std::string adapter_base(const std::string& text, const std::string& origin) {
  const AdapterKeys keys(text, origin);
  if (!keys.given("base_model_name_or_path") || !keys["base_model_name_or_path"].is_string())
    keys.refuse("base_model_name_or_path", "the folder or name of a model");
  return keys["base_model_name_or_path"].get<std::string>();
}

std::string adapter_config(const ModelSpec& model, const std::string& base) {
  const auto number = [](double value) {
    const bool whole = value == std::floor(value) && std::abs(value) < 1e9;
    return whole ? nlohmann::ordered_json(static_cast<std::int64_t>(value))
                 : nlohmann::ordered_json(value);
  };
  nlohmann::ordered_json targets = nlohmann::ordered_json::array();
  std::set<std::string> names;
  for (const AdaptedMatrix& matrix : adapted_matrices(model)) {
    const std::string_view whole = matrix.name.substr(0, matrix.name.rfind('.'));
    names.emplace(model.architecture == Architecture::gpt ? whole
                                                          : whole.substr(whole.find('.') + 1));
  }
  for (const std::string& name : names) targets.push_back(name);
  const nlohmann::ordered_json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path",
       base.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(base)},
      {"r", model.lora_rank},
      {"lora_alpha", number(model.lora_alpha)},
      {"lora_dropout", model.lora_dropout},
      {"target_modules", targets},
      {"bias", "none"},
      {"fan_in_fan_out", model.architecture == Architecture::gpt},
      {"use_rslora", false},
      {"use_dora", false},
      {"modules_to_save", nullptr},
      {"init_lora_weights", true},
      {"inference_mode", true}};
  return config.dump(2) + "\n";
}

std::string adapter_config_beside(const std::string& text, const std::string& origin,
                                  const std::string& base) {
  const AdapterKeys valid(text, origin);  // or it throws
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(text);
  config["base_model_name_or_path"] = base;
  return config.dump(2) + "\n";
}

std::vector<std::string> lora_overrides(const std::string& text) {
  const char* const example = "rank=16,alpha=32,targets=q_proj+v_proj";
  const auto refuse = [&](const std::string& what) {
    throw InputError(Setting{"lora", text} + Message(": " + what),
                     "example: " + Setting{"lora", example});
  };
  std::map<std::string, std::string> values;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos || equals + 1 == part.size())
      refuse("expected KEY=VALUE, found " + printable(part));
    const std::string key = part.substr(0, equals);
    if (key != "rank" && key != "alpha" && key != "dropout" && key != "targets")
      refuse(fmt::format("{} is none of rank, alpha, dropout, targets", printable(key)));
    if (!values.emplace(key, part.substr(equals + 1)).second) refuse(key + " is given twice");
  }
  if (!values.contains("rank")) refuse("the rank is missing");
  const std::string& rank = values["rank"];
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), number);
  if (error != std::errc() || end != rank.data() + rank.size() || number < 1)
    refuse(fmt::format("rank {} is not a whole number of at least 1", printable(rank)));
  if (!values.contains("alpha")) values["alpha"] = std::to_string(2 * number);
  std::string& targets = values["targets"];
  if (targets.empty()) targets = all_linear;
  std::replace(targets.begin(), targets.end(), '+', ',');
  std::vector<std::string> overrides;
  for (const auto& [key, value] : values)
    overrides.push_back(fmt::format("lora_{}={}", key, value));
  return overrides;
}

}  // namespace spillway
