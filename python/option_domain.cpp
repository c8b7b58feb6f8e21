// The domains of options that Python declares, made of those of C++.
#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "python/policy.hpp"

namespace spillway::python {

namespace {

// Choice<std::string> of words that are known only now.
struct Words {
  using Value = std::string;
  std::vector<std::string> words;
  std::string write(const Value& value) const { return value; }
  bool read(const std::string& text, Value& value) const {
    value = text;
    return holds(value);
  }
  bool holds(const Value& value) const {
    return std::find(words.begin(), words.end(), value) != words.end();
  }
  std::string describe() const { return fmt::format("one of {}", fmt::join(words, " | ")); }
  std::vector<std::string> samples(int) const { return words; }
};

OptionValue value_of(bool value) { return value; }
OptionValue value_of(double value) { return value; }
OptionValue value_of(std::int64_t value) { return value; }
OptionValue value_of(std::uint64_t value) { return static_cast<std::int64_t>(value); }
OptionValue value_of(const std::string& value) { return value; }
template <class Value>
OptionValue value_of(const std::optional<Value>& value) {
  return value ? value_of(*value) : OptionValue();
}

template <class Domain>
OptionDomain as_given(const Domain& domain) {
  const auto read = [domain](const std::string& text, OptionValue& value) {
    typename Domain::Value one{};
    if (!domain.read(text, one)) return false;
    value = value_of(one);
    return true;
  };
  return {of_texts(domain), read};
}

template <class Domain>
OptionDomain maybe_open(const Domain& domain, bool open) {
  return open ? as_given(or_auto(domain)) : as_given(domain);
}

}  // namespace

OptionDomain option_domain(const std::string& kind, double least, double most,
                           const std::vector<std::string>& words, bool open) {
  if (kind == "number") return maybe_open(Numbers<double>{least, most}, open);
  if (kind == "whole")
    return maybe_open(
        Numbers<std::int64_t>{static_cast<std::int64_t>(least), static_cast<std::int64_t>(most)},
        open);
  if (kind == "elements") return maybe_open(Elements(static_cast<std::uint64_t>(least)), open);
  if (kind == "choice") return maybe_open(Words{words}, open);
  if (kind == "on_off") return maybe_open(on_off(), open);
  throw InputError("there is no domain " + kind);
}

}  // namespace spillway::python
