// Domains: which values a field of a plan or an option of a policy takes, and how they are written.
//
// A domain is a value with `Value`, the type of its values, and
//   read(text, value)   whether the text is one of them; `value` is set to it
//   describe()          what they are, for people: "a number from 0 to 1"
//   samples(count)      texts of about `count` of them, spread out, the ends among them
// and where values are written, as those of a plan are, write(value) and holds(value).
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace spillway {

template <class Number>
bool read_number(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// At most count - 2 numbers between `least` and `most`, whole ones denser towards `least`.
std::vector<std::string> between(double least, double most, int count, bool whole);

template <class Number>
struct Numbers {
  using Value = Number;
  Number least, most;
  std::string write(Number value) const { return fmt::format("{}", value); }
  bool read(const std::string& text, Number& value) const {
    return read_number(text, value) && holds(value);
  }
  bool holds(Number value) const { return value >= least && value <= most; }
  std::string describe() const {
    constexpr const char* whole = std::is_integral_v<Number> ? "whole " : "";
    return fmt::format("a {}number from {} to {}", whole, least, most);
  }
  std::vector<std::string> samples(int count) const {
    std::vector<std::string> all = between(static_cast<double>(least), static_cast<double>(most),
                                           count, std::is_integral_v<Number>);
    all.insert(all.begin(), write(least));
    if (most > least) all.push_back(write(most));
    return all;
  }
};

// A whole number of elements, also written as 5e8, from `least` to 1e15.
struct Elements : Numbers<std::uint64_t> {
  constexpr explicit Elements(std::uint64_t from = 0) : Numbers{from, 1'000'000'000'000'000} {}
  bool read(const std::string& text, std::uint64_t& value) const;
  std::string describe() const;
};

// Values by name: Choice<Tier>{{"gpu", Tier::gpu}, {"host", Tier::host}}.
template <class Type>
class Choice {
 public:
  using Value = Type;
  Choice(std::initializer_list<std::pair<std::string, Value>> values) : values_(values) {}
  std::string write(const Value& value) const {
    for (const auto& [name, one] : values_) {
      if (one == value) return name;
    }
    return "?";
  }
  bool read(const std::string& text, Value& value) const {
    for (const auto& [name, one] : values_) {
      if (name != text) continue;
      value = one;
      return true;
    }
    return false;
  }
  bool holds(const Value& value) const { return write(value) != "?"; }
  std::string describe() const {
    std::string names;
    for (const auto& [name, one] : values_)
      names += fmt::format("{}{}", names.empty() ? "one of " : " | ", name);
    return names;
  }
  std::vector<std::string> samples(int) const {
    std::vector<std::string> names;
    for (const auto& [name, one] : values_) names.push_back(name);
    return names;
  }

 private:
  std::vector<std::pair<std::string, Value>> values_;
};

// A word for one value, beside the values of another domain. Without a value of its own it stands
// for std::nullopt.
template <class Domain, class Type = std::optional<typename Domain::Value>>
struct WordOr {
  using Value = Type;
  const char* word;
  Domain others;
  Value meaning{};
  static const typename Domain::Value& other(const Value& value) {
    if constexpr (std::is_same_v<Value, typename Domain::Value>) {
      return value;
    } else {
      return *value;
    }
  }
  std::string write(const Value& value) const {
    return value == meaning ? word : others.write(other(value));
  }
  bool read(const std::string& text, Value& value) const {
    typename Domain::Value one{};
    const bool is_word = text == word;
    if (!is_word && !others.read(text, one)) return false;
    value = is_word ? meaning : Value(one);
    return true;
  }
  bool holds(const Value& value) const { return value == meaning || others.holds(other(value)); }
  std::string describe() const { return fmt::format("{}, or {}", others.describe(), word); }
  std::vector<std::string> samples(int count) const {
    std::vector<std::string> all = others.samples(count);
    all.insert(all.begin(), word);
    return all;
  }
};

template <class Domain>
WordOr<Domain> or_auto(Domain others) {
  return {"auto", std::move(others)};
}

inline Choice<bool> on_off() { return {{"on", true}, {"off", false}}; }
constexpr Numbers<double> fraction{0, 1};
constexpr Numbers<int> count(int least, int most) { return {least, most}; }

// A domain whose values are texts, so that domains of several types fit into one list.
struct TextDomain {
  std::string values;  // what they are, for people
  std::function<bool(const std::string&)> holds;
  std::function<std::vector<std::string>(int count)> samples;
};

template <class Domain>
TextDomain of_texts(const Domain& domain) {
  const auto holds = [domain](const std::string& text) {
    typename Domain::Value value{};
    return domain.read(text, value);
  };
  return {domain.describe(), holds, [domain](int count) { return domain.samples(count); }};
}

}  // namespace spillway
