// Model files: a list of [[model]] tables (docs/machine-files.md).
#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "policies/machine/field_reader.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/model.hpp"
#include "policies/model/model_folder.hpp"

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& model_files();  // models/*.toml
}

namespace {

constexpr const char* set_prefix = "model.";

std::vector<Field> fields_of(ModelSpec& model) {
  return {text_field("name", model.name, "my-model"),
          choice_field("architecture", model.architecture,
                       {{"gpt", Architecture::gpt}, {"llama", Architecture::llama}}),
          count_field("layers", model.layers),
          count_field("hidden", model.hidden),
          count_field("heads", model.heads),
          count_field("kv_heads", model.kv_heads),
          count_field("head_width", model.head_width),
          count_field("ffn", model.ffn),
          count_field("vocabulary", model.vocabulary),
          count_field("positions", model.positions),
          number_field("norm_epsilon", model.norm_epsilon),
          number_field("rope_theta", model.rope_theta),
          choice_field("rope_scaling", model.rope_scaling,
                       {{"none", RopeScaling::none},
                        {"linear", RopeScaling::linear},
                        {"llama3", RopeScaling::llama3}}),
          number_field("rope_factor", model.rope_factor),
          number_field("rope_low_frequency_factor", model.rope_low_frequency_factor),
          number_field("rope_high_frequency_factor", model.rope_high_frequency_factor),
          count_field("rope_original_positions", model.rope_original_positions),
          flag_field("qkv_bias", model.qkv_bias),
          flag_field("qk_norm", model.qk_norm),
          count_field("window", model.window),
          flag_field("tied", model.tied),
          count_field("frozen_layers", model.frozen_layers),
          count_field("lora_rank", model.lora_rank),
          number_field("lora_alpha", model.lora_alpha),
          number_field("lora_dropout", model.lora_dropout),
          text_field("lora_targets", model.lora_targets, "q_proj,v_proj"),
          text_field("source", model.source, "paper, table 1")};
}

ModelSpec read_model(const toml::table& table, const std::string& origin,
                     const std::vector<std::string>& overrides) {
  ModelSpec model;
  FieldReader reader(fields_of(model), origin, place_of(table.source(), origin), nullptr);
  for (const auto& [key, value] : table) reader.read("", key, value);
  for (const std::string& assignment : overrides) reader.override_with(assignment, set_prefix);
  const bool is_llama = model.architecture == Architecture::llama;
  std::vector<std::string> required = {"name",  "layers",     "hidden",
                                       "heads", "vocabulary", "positions"};
  if (is_llama) required.push_back("ffn");
  reader.require(required);
  if (!reader.given("kv_heads")) model.kv_heads = model.heads;
  if (!reader.given("qkv_bias")) model.qkv_bias = !is_llama;
  if (!reader.given("tied")) model.tied = !is_llama;
  if (!reader.given("ffn")) {
    // Out of range values of hidden are reported below, not multiplied.
    model.ffn = model.hidden <= 1'000'000 ? 4 * model.hidden : model.hidden;
  }
  if (const auto problem = find_problem(model)) reader.fail(*problem);
  return model;
}

// The [[model]] tables of a document, at least one.
std::vector<const toml::table*> model_tables(const toml::table& document,
                                             const std::string& origin) {
  for (const auto& [key, _] : document) {
    if (key.str() == "model") continue;
    throw InputError(place_of(key.source(), origin), 0,
                     fmt::format("unknown key {} outside [[model]]", key.str()),
                     "put the keys of a model under a line [[model]]");
  }
  const toml::node* node = document.get("model");
  if (!node) throw InputError(origin, 0, "there is no model", "begin with a line [[model]]");
  const toml::array* array = node->as_array();
  if (!array || !array->is_homogeneous(toml::node_type::table)) {
    throw InputError(place_of(node->source(), origin), 0, "model is not a list of tables",
                     "write [[model]] with two brackets");
  }
  std::vector<const toml::table*> tables;
  for (const toml::node& element : *array) tables.push_back(element.as_table());
  return tables;
}

ModelSpec load_builtin(const std::string& name, const std::vector<std::string>& overrides) {
  for (const auto& [file, text] : embedded::model_files()) {
    const toml::table document = parse_toml(text, file);
    for (const toml::table* table : model_tables(document, file)) {
      if ((*table)["name"].value<std::string>() == name) return read_model(*table, file, overrides);
    }
  }
  bug("a built-in model is in its file", __FILE__, __LINE__, name);
}

std::vector<ModelSpec> read_builtin_models() {
  std::vector<ModelSpec> models;
  for (const auto& [file, text] : embedded::model_files()) {
    const toml::table document = parse_toml(text, file);
    for (const toml::table* table : model_tables(document, file)) {
      models.push_back(read_model(*table, file, {}));
    }
  }
  return models;
}

}  // namespace

const std::vector<ModelSpec>& builtin_models() {
  static const std::vector<ModelSpec> models = read_builtin_models();
  return models;
}

ModelSpec parse_model(const std::string& toml_text, const std::string& origin,
                      const std::vector<std::string>& overrides) {
  const toml::table document = parse_toml(toml_text, origin);
  const std::vector<const toml::table*> tables = model_tables(document, origin);
  if (tables.size() > 1) {
    throw InputError(place_of(tables[1]->source(), origin), 0,
                     fmt::format("there are {} models", tables.size()),
                     "keep the one [[model]] to be used in a file of its own");
  }
  return read_model(*tables.front(), origin, overrides);
}

ModelSpec load_model(const std::string& name_or_path, const std::vector<std::string>& overrides) {
  std::vector<std::string> names;
  for (const ModelSpec& model : builtin_models()) {
    if (model.name == name_or_path) return load_builtin(name_or_path, overrides);
    names.push_back(model.name);
  }
  std::vector<std::string> tried;
  if (const auto folder = find_model_folder(name_or_path, &tried)) {
    const ModelSpec model = read_model_folder(*folder);
    if (overrides.empty()) return model;
    const auto config = folder->path / hugging_face_config_file;
    return parse_model(model_to_toml(model), config.string(), overrides);
  }
  std::error_code ignored;
  const std::filesystem::path path = name_or_path;
  const bool is_name = !tried.empty() && path.extension() != ".toml" && !exists(path, ignored);
  if (!is_name) {
    if (const auto text = read_named_file(name_or_path))
      return parse_model(*text, name_or_path, overrides);
  }
  // A name with a slash is of no built-in model.
  std::string hint =
      is_name && name_or_path.find('/') != std::string::npos
          ? "there is no such file or folder"
          : unknown_name_hint(name_or_path, names) +
                "; a path of a TOML file or of a folder with a config.json works too";
  for (const std::string& place : tried)
    hint += fmt::format("; in Hugging Face's cache there is no {}", place);
  throw InputError(fmt::format("unknown model {}", name_or_path), hint);
}

std::vector<std::string> model_keys() {
  ModelSpec scratch;
  return keys_of(fields_of(scratch));
}

void check_model_setting(const std::string& key, const std::string& value) {
  ModelSpec scratch;
  set_field(fields_of(scratch), key, value);
}

std::string model_to_toml(const ModelSpec& model) {
  // What follows from the other keys, or is as it would be if left out, is not written: so that
  // --set model.hidden works on a written file too. Fields bind to variables that `set` could
  // change.
  ModelSpec copy = model, usual;
  usual.qkv_bias = usual.tied = model.architecture == Architecture::gpt;
  usual.kv_heads = model.architecture == Architecture::gpt ? model.heads : 0;
  usual.ffn = model.architecture == Architecture::gpt ? 4 * model.hidden : 0;
  const std::vector<Field> usual_fields = fields_of(usual);
  const std::set<std::string> always = {"name",  "architecture", "layers",    "hidden",
                                        "heads", "vocabulary",   "positions", "source"};
  std::string text = "[[model]]\n";
  std::size_t index = 0;
  for (const Field& field : fields_of(copy)) {
    const bool is_usual = field.get() == usual_fields[index++].get();
    if (always.contains(field.key) || !is_usual) text += to_toml(field.key, field);
  }
  return text;
}

}  // namespace spillway
