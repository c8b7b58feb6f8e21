// Reads fields (config_field.hpp) from TOML and from --set, and remembers where each value stands,
// so that every error names file:line:column or the --set that caused it. For the readers of TOML
// files only: it is the one header that includes toml++.
#pragma once

#include <toml++/toml.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "policies/machine/config_field.hpp"
#include "policies/machine/field_problem.hpp"

namespace spillway {

// The document; a syntax error becomes an InputError with its place and `hint`.
toml::table parse_toml(
    const std::string& text, const std::string& origin,
    const char* hint = "docs/machine-files.md describes machine and model files");

// "a string", "an array" ...
const char* name_of(toml::node_type type);

// "file:line:column"; just the file where toml++ knows no place, nothing of a text without a file.
std::string place_of(const toml::source_region& region, const std::string& origin);

// The contents of a file named by a user. Not a path (no slash, no .toml, no such file): nothing.
// Throws InputError where it is a path but cannot be read.
std::optional<std::string> read_named_file(const std::string& name_or_path);

// The TOML form of a string, quoted and escaped.
std::string quoted(const std::string& text);

// The line `name = value`, or `name = { value = ..., source = "..." }`.
std::string to_toml(const std::string& name, const Field& field);
std::string to_toml(const std::string& name, const Field& field, const std::string& source);

// Where a value is from: `sources[key]`.
using Sources = std::map<std::string, std::string>;

class FieldReader {
 public:
  // `sources`: where a value may be a table { value = ..., source = "..." }, else null. `place` is
  // the place of errors about keys that are missing.
  FieldReader(std::vector<Field> fields, std::string origin, std::string place, Sources* sources);

  // Keys "NAME.*" that are missing are reported at `place`.
  void begin_section(const std::string& name, std::string place);
  // One `key = value` of a table; `prefix` is the table's name with a dot, or empty.
  void read(const std::string& prefix, const toml::key& key, const toml::node& value);
  // "KEY=VALUE" from --set; `prefix` ("model.") only for messages. `source`: where the value is
  // from.
  void override_with(const std::string& assignment, const std::string& prefix,
                     const std::string& source = "set on the command line");

  // Takes a key as not given after all.
  void forget(const std::string& key) { places_.erase(key); }
  bool given(const std::string& key) const { return places_.count(key) > 0; }
  // Throws InputError that names all of these that are not given, at the place of the first.
  void require(const std::vector<std::string>& keys, const std::string& or_else = "") const;
  [[noreturn]] void fail(const FieldProblem& problem) const;
  [[noreturn]] void fail_unknown(const std::string& key, const std::string& place) const;
  const std::string& origin() const { return origin_; }

 private:
  const Field* find(const std::string& key) const;
  // The place of the value, else of its section, else of the whole.
  const std::string& locate(const std::string& key) const;
  // The value in { value = ..., source = "..." }, with the source put away.
  const toml::node& unwrap(const Field& field, const toml::table& table);
  void set_source(const std::string& key, const std::string& text, const std::string& place);
  void set(const Field& field, const std::string& text, const std::string& place);

  std::vector<Field> fields_;
  std::string origin_;
  std::string place_;
  std::map<std::string, std::string> sections_;  // name -> place
  Sources* sources_;
  std::map<std::string, std::string> places_;  // key -> place of its value
};

// "KEY=VALUE" -> {KEY, VALUE}; throws InputError naming `--set PREFIX...` where there is no '='.
std::pair<std::string, std::string> split_assignment(const std::string& assignment,
                                                     const std::string& prefix);

}  // namespace spillway
