#include "policies/common/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

namespace {

const PolicyOption& find(const PolicyInfo& info, const std::string& name) {
  const auto it = std::find_if(info.options.begin(), info.options.end(),
                               [&](const PolicyOption& option) { return option.name == name; });
  SPILLWAY_ASSERT(it != info.options.end(), name);
  return *it;
}

template <class Number>
bool parse(const std::string& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

const std::string& OptionReader::text(const std::string& name) const {
  const auto it = options_.find(name);
  return it != options_.end() ? it->second : find(info_, name).default_value;
}

void OptionReader::reject(const std::string& name, const std::string& expected) const {
  throw InputError(
      fmt::format("policy {}: option {}={} is not {}", info_.name, name, text(name), expected),
      fmt::format("{}: {}", name, find(info_, name).help));
}

bool OptionReader::on_off(const std::string& name) const {
  if (text(name) == "on") return true;
  if (text(name) == "off") return false;
  reject(name, "on or off");
}

double OptionReader::fraction(const std::string& name, double most) const {
  double value = 0;
  if (!parse(text(name), value) || !(value >= 0 && value <= most)) {
    reject(name, fmt::format("a number from 0 to {}", most));
  }
  return value;
}

int OptionReader::count(const std::string& name, int least, int most) const {
  int value = 0;
  if (!parse(text(name), value) || value < least || value > most) {
    reject(name, fmt::format("a whole number from {} to {}", least, most));
  }
  return value;
}

std::uint64_t OptionReader::elements(const std::string& name, std::uint64_t least) const {
  constexpr double most = 1e15;
  double value = 0;
  if (!parse(text(name), value) || !(value >= static_cast<double>(least) && value <= most) ||
      value != std::floor(value)) {
    reject(name, fmt::format("a whole number of elements from {} to {:g}", least, most));
  }
  return static_cast<std::uint64_t>(value);
}

int OptionReader::choice(const std::string& name,
                         std::initializer_list<const char*> choices) const {
  int index = 0;
  std::string all;
  for (const char* one : choices) {
    if (text(name) == one) return index;
    all += fmt::format("{}{}", index++ ? " | " : "", one);
  }
  reject(name, "one of " + all);
}

}  // namespace spillway
