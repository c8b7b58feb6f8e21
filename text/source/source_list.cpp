// What users write to name sources: paths with weights, and lists of them in TOML.
#include <fmt/format.h>

#include <toml++/toml.h>
#include <charconv>
#include <cmath>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/text.hpp"
#include "text/source/source.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_list_bytes = std::uint64_t{1} << 20;
constexpr double largest_weight = 1000;

bool is_weight(double weight) { return weight > 0 && weight <= largest_weight; }

// Reads one [[source]].
class SourceTable {
 public:
  SourceTable(const toml::table& table, const fs::path& list) : table_(table), list_(list) {}

  SourceSettings read() {
    for (const auto& [key, value] : table_) field(std::string(key.str()), value);
    if (settings_.paths.empty())
      fail(table_, "a source without path", "write path = \"FILE\", or paths = [...]");
    return settings_;
  }

 private:
  [[noreturn]] void fail(const toml::node& node, const std::string& what, const std::string& hint) {
    throw InputError(list_.string(), static_cast<int>(node.source().begin.line), what, hint);
  }

  std::string text(const std::string& key, const toml::node& node) {
    const auto* value = node.as_string();
    if (value == nullptr || value->get().empty())
      fail(node, key + " is not a text", fmt::format("write {} = \"...\"", key));
    return value->get();
  }

  void path(const std::string& key, const toml::node& node) {
    const fs::path named = text(key, node);
    settings_.paths.push_back(named.is_absolute() ? named : list_.parent_path() / named);
  }

  bool yes_or_no(const std::string& key, const toml::node& node) {
    const auto* value = node.as_boolean();
    if (value == nullptr) fail(node, key + " is neither true nor false", "");
    return value->get();
  }

  void field(const std::string& key, const toml::node& node) {
    if (key == "path") {
      path(key, node);
    } else if (key == "paths") {
      const toml::array* list = node.as_array();
      if (list == nullptr) fail(node, "paths is not a list", "write paths = [\"FILE\", ...]");
      for (const toml::node& one : *list) path("an element of paths", one);
    } else if (key == "weight") {
      const auto value = node.value<double>();
      if (!value || node.is_boolean() || !is_weight(*value))
        fail(node, "weight is not a number above 0 and up to 1000", "write weight = 2");
      settings_.weight = *value;
    } else if (key == "format") {
      settings_.format = format(node);
    } else if (key == "separator") {
      settings_.separator = text(key, node);
    } else if (key == "skip_malformed") {
      settings_.skip_malformed = yes_or_no(key, node);
    } else if (key == "binary") {
      settings_.binary = yes_or_no(key, node);
    } else {
      fail(node, fmt::format("a source has no {}", printable(key)),
           unknown_name_hint(printable(key), {"path", "paths", "weight", "format", "separator",
                                              "skip_malformed", "binary"}));
    }
  }

  SourceFormat format(const toml::node& node) {
    const std::string name = text("format", node);
    try {
      return parse_source_format(name);
    } catch (const InputError& error) {
      fail(node, error.what(), error.hint());
    }
  }

  const toml::table& table_;
  const fs::path& list_;
  SourceSettings settings_;
};

}  // namespace

SourceFormat parse_source_format(const std::string& name) {
  if (name == "automatic") return SourceFormat::automatic;
  if (name == "text") return SourceFormat::text;
  if (name == "jsonl") return SourceFormat::jsonl;
  if (name == "json") return SourceFormat::json;
  throw InputError(fmt::format("there is no format {}", printable(name)),
                   unknown_name_hint(printable(name), {"automatic", "text", "jsonl", "json"}));
}

std::vector<SourceSettings> parse_source_list(const std::string& text, const fs::path& name) {
  toml::table document;
  try {
    document = toml::parse(text, name.string());
  } catch (const toml::parse_error& error) {
    throw InputError(name.string(), static_cast<int>(error.source().begin.line),
                     printable(error.description()), "the file is a list of sources in TOML");
  }
  std::vector<SourceSettings> sources;
  for (const auto& [key, value] : document) {
    const toml::array* list = value.as_array();
    if (key.str() != "source" || list == nullptr || !list->is_array_of_tables())
      throw InputError(name.string(), static_cast<int>(key.source().begin.line),
                       fmt::format("{} is not a list of sources", printable(key.str())),
                       "write each source as a table: [[source]]");
    for (const toml::node& source : *list)
      sources.push_back(SourceTable(*source.as_table(), name).read());
  }
  if (sources.empty())
    throw InputError(name.string(), 0, "there is no source", "write each as a table: [[source]]");
  return sources;
}

std::vector<SourceSettings> parse_sources(const std::string& text) {
  SourceSettings source;
  std::string path = text;
  std::error_code error;
  const std::size_t sign = text.rfind('=');
  if (sign != std::string::npos && !fs::exists(text, error)) {
    path = text.substr(0, sign);
    const std::string weight = text.substr(sign + 1);
    const auto [end, failure] =
        std::from_chars(weight.data(), weight.data() + weight.size(), source.weight);
    if (failure != std::errc() || end != weight.data() + weight.size() || !is_weight(source.weight))
      throw InputError(fmt::format("{} is no weight in {}", printable(weight), printable(text)),
                       "write PATH=WEIGHT with a number above 0 and up to 1000: chats.jsonl=2");
  }
  if (path.empty()) throw InputError("a source without a path", "write PATH or PATH=WEIGHT");
  if (fs::path(path).extension() != ".toml" || !fs::is_regular_file(path, error)) {
    source.paths = {path};
    return {source};
  }
  std::vector<SourceSettings> sources = parse_source_list(read_file(path, most_list_bytes), path);
  for (SourceSettings& one : sources) one.weight *= source.weight;
  return sources;
}

}  // namespace spillway
