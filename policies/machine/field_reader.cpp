#include "policies/machine/field_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <regex>
#include <string_view>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/suggest.hpp"

namespace spillway {

namespace {

// Of a machine, model or sweep file. Devices go on for ever.
constexpr std::size_t most_file_bytes = std::size_t{16} << 20;

// Behind the string that begins at `at`, of one line or of several; the end of the text where it is
// not closed.
std::size_t after_string(const std::string& text, std::size_t at) {
  const char quote = text[at];
  const bool several_lines = text.compare(at, 3, std::string(3, quote)) == 0;
  const std::string close(several_lines ? 3 : 1, quote);
  for (at += close.size(); at < text.size(); ++at) {
    if (text.compare(at, close.size(), close) == 0) return at + close.size();
    if (text[at] == '\n' && !several_lines) return at;
    if (text[at] == '\\' && quote == '"') ++at;
  }
  return text.size();
}

// The line of a key of more than most_key_parts parts; nothing where there is none. toml++ reads
// such keys into tables within tables, and takes these apart by recursion: enough dots would
// overflow the stack.
constexpr int most_key_parts = 16;
std::optional<int> line_of_deep_key(const std::string& text) {
  int line = 1, parts = 1;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      const std::size_t end = after_string(text, at);
      line += static_cast<int>(std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                                          text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      at = end - 1;
    } else if (c == '#') {
      at = std::min(text.find('\n', at), text.size()) - 1;
    } else if (c == '.') {
      if (++parts > most_key_parts) return line;
    } else if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) {
      parts = 1;
      if (c == '\n') ++line;
    }
  }
  return std::nullopt;
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

toml::table parse_toml(const std::string& text, const std::string& origin, const char* hint) {
  if (const auto line = line_of_deep_key(text)) {
    throw InputError(origin, *line, fmt::format("a key has more than {} parts", most_key_parts),
                     hint);
  }
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    throw InputError(place_of(error.source(), origin), 0, std::string(error.description()), hint);
  }
}

std::string place_of(const toml::source_region& region, const std::string& origin) {
  if (origin.empty() || !region.begin) return origin;
  return fmt::format("{}:{}:{}", region.path ? *region.path : origin, region.begin.line,
                     region.begin.column);
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
  const auto refuse = [&](int error_number) {
    throw InputError(name_or_path, 0, fmt::format("cannot read: {}", std::strerror(error_number)),
                     "check the spelling and the permissions of the path");
  };
  // Does not wait for the other end of a FIFO, or for who holds a lease on the file.
  const FileDescriptor file(::open(name_or_path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) refuse(errno);
  if (!S_ISREG(status.st_mode)) {
    throw InputError(name_or_path, 0, "is no regular file", "name a TOML file");
  }
  std::string text, piece(64 * 1024, '\0');
  while (text.size() <= most_file_bytes) {
    const ssize_t count = ::read(file.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(errno);
    if (count == 0) break;
    text.append(piece, 0, static_cast<std::size_t>(count));
  }
  if (text.size() > most_file_bytes) {
    throw InputError(name_or_path, 0,
                     fmt::format("holds more than {} MiB, which no file of settings does",
                                 most_file_bytes >> 20),
                     "name a TOML file");
  }
  return text;
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
    throw InputError(fmt::format("{}{}: not of the form KEY=VALUE", prefix, assignment),
                     "write for example " + Setting{"host.memory", "256GB"});
  }
  // "a.b=1,c.d=2"
  static const std::regex next(",\\s*([a-z0-9_]+\\.[a-z0-9_.]+=)");
  if (std::regex_search(assignment, next)) {
    throw InputError(fmt::format("{}{}: more than one setting", prefix, assignment),
                     "write them apart: " + std::regex_replace(assignment, next, " $1"));
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
    throw InputError(place, 0, field.key + ": " + error.message(), error.advice());
  }
  places_[field.key] = place;
}

void FieldReader::set_source(const std::string& key, const std::string& text,
                             const std::string& place) {
  try {
    require_printable(text);
  } catch (const InputError& error) {
    throw InputError(place, 0, key + ": source: " + error.message(), error.advice());
  }
  (*sources_)[key] = text;
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
      set_source(field.key, node.as_string()->get(), place);
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

void FieldReader::override_with(const std::string& assignment, const std::string& prefix,
                                const std::string& source) {
  const auto [key, value] = split_assignment(assignment, prefix);
  const std::string place = prefix + assignment;
  const Field* field = find(key);
  if (!field) fail_unknown(key, place);
  set(*field, value, place);
  if (sources_) (*sources_)[key] = source;
}

void FieldReader::begin_section(const std::string& name, std::string place) {
  sections_[name] = std::move(place);
}

const std::string& FieldReader::locate(const std::string& key) const {
  if (const auto value = places_.find(key); value != places_.end()) return value->second;
  const auto section = sections_.find(key.substr(0, key.find('.')));
  return section == sections_.end() ? place_ : section->second;
}

void FieldReader::require(const std::vector<std::string>& keys, const std::string& or_else) const {
  std::vector<std::string> missing;
  std::vector<std::pair<std::string, std::string>> lines;  // by section: what to add
  for (const std::string& key : keys) {
    if (given(key)) continue;
    const Field* field = find(key);
    SPILLWAY_ASSERT(field, key);
    missing.push_back(key);
    const std::size_t dot = key.find_last_of('.');
    const std::string section = dot == std::string::npos ? "" : key.substr(0, dot);
    const std::string line = fmt::format("{} = {}", key.substr(dot + 1), field->example);
    if (!lines.empty() && lines.back().first == section)
      lines.back().second += ", " + line;
    else
      lines.emplace_back(section, line);
  }
  if (missing.empty()) return;
  std::string hint;
  for (const auto& [section, line] : lines)
    hint += (hint.empty() ? "add for example " : "; ") + line +
            (section.empty() ? "" : fmt::format(" under [{}]", section));
  constexpr std::size_t many = 3;
  if (missing.size() > many && !or_else.empty()) hint += "; or " + or_else;
  throw InputError(
      locate(missing.front()), 0,
      fmt::format("{} {} missing", fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are"),
      hint);
}

void FieldReader::fail(const FieldProblem& problem) const {
  throw InputError(locate(problem.key), 0, fmt::format("{}: {}", problem.key, problem.what),
                   problem.hint);
}

void FieldReader::fail_unknown(const std::string& key, const std::string& place) const {
  std::vector<std::string> sections;
  for (const Field& field : fields_) {
    const std::string section = field.key.substr(0, field.key.find('.'));
    if (section != field.key && (sections.empty() || sections.back() != section))
      sections.push_back(section);
  }
  const bool is_section = !near_names(key, sections).empty();
  throw InputError(place, 0, fmt::format("unknown key {}", key),
                   unknown_name_hint(key, is_section ? sections : keys_of(fields_)));
}

}  // namespace spillway
