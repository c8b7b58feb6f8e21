// Where models' files keep a chat template.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "text/chat/own_template.hpp"

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& chat_templates();
}  // namespace embedded

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr std::uint64_t most_template_bytes = std::uint64_t{64} << 20;  // with all added tokens
constexpr const char* config_name = "tokenizer_config.json";

json parse_config(const std::string& text, const std::string& name) {
  if (nested_deeper(text, most_nesting)) throw InputError(name, 0, "is nested too deeply");
  json config = json::parse(text, nullptr, false);
  if (!config.is_object()) throw InputError(name, 0, "is not a JSON object", "copy the file again");
  return config;
}

// A token is a text, or an object with its `content`.
std::optional<std::string> token_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return value["content"].get<std::string>();
  return {};
}

// One template, or several with names, of which "default" is for chats.
std::string template_of(const json& value, const std::string& name) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    for (const json& one : value) {
      if (one.is_object() && one.value("name", json()) == "default" && one.contains("template") &&
          one["template"].is_string())
        return one["template"].get<std::string>();
    }
    throw InputError(
        name, 0, "holds chat templates, but none is named default",
        "name a file that holds one template: " + Setting{"chat_template", "FILE.jinja"});
  }
  throw InputError(name, 0, fmt::format("`chat_template` is {}, not a text", value.type_name()));
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

}  // namespace

TemplateFile parse_tokenizer_config(const std::string& text, const std::string& name) {
  const json config = parse_config(text, name);
  TemplateFile file;
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (const auto token = token_of(value)) file.variables[key] = *token;
  }
  if (const auto found = config.find("chat_template"); found != config.end() && !found->is_null())
    file.text = template_of(*found, name);
  return file;
}

TemplateFile read_template_file(const fs::path& path) {
  std::error_code error;
  const auto read_config = [](const fs::path& config) {
    return parse_tokenizer_config(read_file(config, most_template_bytes), config.string());
  };
  if (!fs::is_directory(path, error)) {
    if (path.extension() == ".json") {
      TemplateFile file = read_config(path);
      if (file.text.empty())
        throw InputError(path.string(), 0, "holds no chat_template",
                         "name a file or a model's folder with one, or a built-in template: " +
                             Setting{"chat_template", "chatml"});
      return file;
    }
    // Beside it lie, in a model's folder, the names of its tokens.
    TemplateFile file;
    const fs::path config = path.parent_path() / config_name;
    if (is_file(config)) file.variables = read_config(config).variables;
    file.text = read_file(path, most_template_bytes);
    return file;
  }
  TemplateFile file;
  if (is_file(path / config_name)) file = read_config(path / config_name);
  if (is_file(path / chat_template_file))
    file.text = read_file(path / chat_template_file, most_template_bytes);
  if (file.text.empty())
    throw InputError(
        path.string(), 0,
        fmt::format("has no chat template: no {}, and none in {}", chat_template_file, config_name),
        "name a built-in template: " + Setting{"chat_template", "chatml"});
  return file;
}

std::string chat_template_text(const std::string& name) {
  for (const auto& [file, text] : embedded::chat_templates())
    if (file == name + ".jinja") return text;
  return read_template_file(name).text;
}

bool has_chat_template(const fs::path& folder) {
  if (is_file(folder / chat_template_file)) return true;
  if (!is_file(folder / config_name)) return false;
  const std::string text = read_file(folder / config_name, most_template_bytes);
  return !parse_tokenizer_config(text, (folder / config_name).string()).text.empty();
}

}  // namespace spillway
