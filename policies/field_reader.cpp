#include "policies/field_reader.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/suggest.hpp"

namespace spillway {

namespace {

const char* name_of(toml::node_type type) {
  switch (type) {
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number";
    case toml::node_type::boolean:
      return "true or false";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::table:
      return "a table";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time:
      return "a date or time";
    case toml::node_type::none:
      break;
  }
  return "nothing";
}

// The text of a scalar, if it has the field's form.
std::optional<std::string> text_of(const toml::node& value, Field::Form form) {
  switch (form) {
    case Field::Form::text:
      if (const auto* text = value.as_string()) return text->get();
      break;
    case Field::Form::number:
      if (const auto* integer = value.as_integer()) return std::to_string(integer->get());
      if (const auto* real = value.as_floating_point()) return fmt::format("{}", real->get());
      break;
    case Field::Form::flag:
      if (const auto* flag = value.as_boolean()) return std::string(flag->get() ? "true" : "false");
      break;
  }
  return std::nullopt;
}

std::string value_of(const Field& field) {
  const std::string value = field.get();
  return field.form == Field::Form::text ? quoted(value) : value;
}

}  // namespace

toml::table parse_toml(const std::string& text, const std::string& origin) {
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    throw InputError(place_of(error.source(), origin), 0, std::string(error.description()),
                     "docs/machine-files.md describes machine and model files");
  }
}

std::string place_of(const toml::source_region& region, const std::string& origin) {
  if (!region.begin) return origin;
  return fmt::format("{}:{}:{}", origin, region.begin.line, region.begin.column);
}

std::optional<std::string> read_named_file(const std::string& name_or_path) {
  std::error_code ignored;
  const bool is_path = name_or_path.find('/') != std::string::npos ||
                       std::filesystem::path(name_or_path).extension() == ".toml" ||
                       std::filesystem::is_regular_file(name_or_path, ignored);
  if (!is_path) return std::nullopt;
  if (std::filesystem::is_directory(name_or_path, ignored)) {
    throw InputError(name_or_path, 0, "is a directory", "name a TOML file in it");
  }
  std::ifstream file(name_or_path, std::ios::binary);
  std::ostringstream text;
  // Inserting an empty stream buffer sets failbit on `text`: an empty file is not an error.
  if (file && file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (file.bad() || !file.is_open()) {
    throw InputError(name_or_path, 0, fmt::format("cannot read: {}", std::strerror(errno)),
                     "check the spelling and the permissions of the path");
  }
  return text.str();
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        // Other control characters are not allowed as they are; bytes of UTF-8 are.
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string to_toml(const std::string& name, const Field& field) {
  return fmt::format("{} = {}\n", name, value_of(field));
}

std::string to_toml(const std::string& name, const Field& field, const std::string& source) {
  return fmt::format("{} = {{ value = {}, source = {} }}\n", name, value_of(field), quoted(source));
}

std::pair<std::string, std::string> split_assignment(const std::string& assignment,
                                                     const std::string& prefix) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw InputError(fmt::format("--set {}{}: not of the form KEY=VALUE", prefix, assignment),
                     "write for example --set host.memory=256GB");
  }
  return {assignment.substr(0, equals), assignment.substr(equals + 1)};
}

FieldReader::FieldReader(std::vector<Field> fields, std::string origin, std::string place,
                         Sources* sources)
    : fields_(std::move(fields)),
      origin_(std::move(origin)),
      place_(std::move(place)),
      sources_(sources) {}

const Field* FieldReader::find(const std::string& key) const {
  for (const Field& field : fields_) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

void FieldReader::set(const Field& field, const std::string& text, const std::string& place) {
  try {
    field.set(text);
  } catch (const InputError& error) {
    throw InputError(place, 0, fmt::format("{}: {}", field.key, error.what()), error.hint());
  }
  places_[field.key] = place;
}

const toml::node& FieldReader::unwrap(const Field& field, const toml::table& table) {
  const std::string name = field.key.substr(field.key.find('.') + 1);
  for (const auto& [key, node] : table) {
    const std::string place = place_of(key.source(), origin_);
    if (key.str() == "source") {
      if (!node.is_string()) {
        throw InputError(place, 0, fmt::format("{}: source is not a string", field.key),
                         "write for example source = \"datasheet, page 3\"");
      }
      (*sources_)[field.key] = node.as_string()->get();
    } else if (key.str() != "value") {
      throw InputError(place, 0, fmt::format("unknown key {}.{}", field.key, key.str()),
                       "known: value, source");
    }
  }
  if (const toml::node* value = table.get("value")) return *value;
  throw InputError(
      place_of(table.source(), origin_), 0, fmt::format("{} has no value", field.key),
      fmt::format("write {} = {{ value = {}, source = \"...\" }}", name, field.example));
}

void FieldReader::read(const std::string& prefix, const toml::key& key, const toml::node& value) {
  const std::string name = prefix + std::string(key.str());
  const Field* field = find(name);
  if (!field) fail_unknown(name, place_of(key.source(), origin_));

  const toml::table* table = value.as_table();
  const toml::node& scalar = table && sources_ ? unwrap(*field, *table) : value;
  const std::string place = place_of(scalar.source(), origin_);
  const std::optional<std::string> text = text_of(scalar, field->form);
  if (!text) {
    throw InputError(place, 0, fmt::format("{} is {}", name, name_of(scalar.type())),
                     fmt::format("write for example {} = {}", key.str(), field->example));
  }
  set(*field, *text, place);
}

void FieldReader::override_with(const std::string& assignment, const std::string& prefix) {
  const auto [key, value] = split_assignment(assignment, prefix);
  const std::string place = fmt::format("--set {}{}", prefix, assignment);
  const Field* field = find(key);
  if (!field) fail_unknown(key, place);
  set(*field, value, place);
  if (sources_) (*sources_)[key] = "set on the command line";
}

void FieldReader::begin_section(const std::string& name, std::string place) {
  sections_[name] = std::move(place);
}

const std::string& FieldReader::locate(const std::string& key) const {
  if (const auto value = places_.find(key); value != places_.end()) return value->second;
  const auto section = sections_.find(key.substr(0, key.find('.')));
  return section == sections_.end() ? place_ : section->second;
}

void FieldReader::require(const std::string& key) const {
  if (given(key)) return;
  const Field* field = find(key);
  SPILLWAY_ASSERT(field, key);
  const std::size_t dot = key.find('.');
  const bool in_section = dot != std::string::npos;
  throw InputError(locate(key), 0, fmt::format("{} is missing", key),
                   fmt::format("add for example {} = {}{}", in_section ? key.substr(dot + 1) : key,
                               field->example,
                               in_section ? fmt::format(" under [{}]", key.substr(0, dot)) : ""));
}

void FieldReader::fail(const FieldProblem& problem) const {
  throw InputError(locate(problem.key), 0, fmt::format("{}: {}", problem.key, problem.what),
                   problem.hint);
}

void FieldReader::fail_unknown(const std::string& key, const std::string& place) const {
  throw InputError(place, 0, fmt::format("unknown key {}", key),
                   unknown_name_hint(key, keys_of(fields_)));
}

}  // namespace spillway
