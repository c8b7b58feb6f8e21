// A field: one key of a machine or model file, bound to the variable that holds it.
//
// A list of fields is the single description of a file format: reading TOML, `--set KEY=VALUE`,
// writing TOML and "did you mean" all go by it. `set` takes the text of a value as a person writes
// it; `get` gives a text from which `set` restores exactly the same value.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"

namespace spillway {

struct Field {
  enum class Form : std::uint8_t {
    text,    // a TOML string
    number,  // a TOML integer or float
    flag     // a TOML boolean
  };
  std::string key;  // "gpu.memory"
  Form form = Form::text;
  std::string example;                          // TOML text of a value, for hints
  std::function<void(const std::string&)> set;  // throws InputError without a place
  std::function<std::string()> get;
  std::function<std::string()> show = {};  // rounded, for people: "24.38 GB"; empty: as `get`
};

// The value of a field, for people.
std::string shown(const Field& field);

// Throws InputError without a place: a terminal would not show all of the text as it is. Line
// breaks and tabs are fine.
void require_printable(const std::string& text);

Field text_field(std::string key, std::string& value, std::string example);
Field flag_field(std::string key, bool& value);
Field count_field(std::string key, std::int64_t& value);        // a whole number
Field number_field(std::string key, double& value);             // finite, not negative
Field bytes_field(std::string key, std::uint64_t& value);       // "24GB"
Field bandwidth_field(std::string key, double& value);          // "21GB/s"
Field flops_field(std::string key, double& value);              // "160TFLOPS"
Field params_per_second_field(std::string key, double& value);  // "1.2Gparam/s"
Field nanoseconds_field(std::string key, std::int64_t& value);  // "10us"

// Throws InputError with near names: the text is none of `names`.
[[noreturn]] void fail_unknown_choice(const std::string& text,
                                      const std::vector<std::string>& names);

template <class Enum>
Field choice_field(std::string key, Enum& value,
                   std::vector<std::pair<std::string, Enum>> choices) {
  Field field;
  field.example = "\"" + choices.front().first + "\"";
  field.key = std::move(key);
  field.set = [&value, choices](const std::string& text) {
    std::vector<std::string> names;
    for (const auto& [name, choice] : choices) {
      if (name == text) {
        value = choice;
        return;
      }
      names.push_back(name);
    }
    fail_unknown_choice(text, names);
  };
  field.get = [&value, choices] {
    for (const auto& [name, choice] : choices) {
      if (choice == value) return name;
    }
    bug("value is one of the choices", __FILE__, __LINE__);
  };
  return field;
}

std::vector<std::string> keys_of(const std::vector<Field>& fields);

// Sets the field `key` of `fields`. Throws InputError without a place: no such key (with near
// names), or not a value of it.
void set_field(const std::vector<Field>& fields, const std::string& key, const std::string& value);

}  // namespace spillway
