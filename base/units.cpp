#include "base/units.hpp"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/errors.hpp"

namespace spillway {

namespace {

struct Scale {
  int power_of_ten = 0;
  int power_of_two = 0;
};

using Units = std::vector<std::pair<std::string, Scale>>;

// What one parse function accepts, in words for its errors.
struct Quantity {
  const char* what;     // "a size in bytes"
  const char* example;  // "24GB"
  Units units;
};

constexpr std::array<std::pair<const char*, int>, 8> decimal_prefixes = {
    {{"", 0}, {"k", 3}, {"K", 3}, {"M", 6}, {"G", 9}, {"T", 12}, {"P", 15}, {"E", 18}}};
constexpr std::array<std::pair<const char*, int>, 5> binary_prefixes = {
    {{"Ki", 10}, {"Mi", 20}, {"Gi", 30}, {"Ti", 40}, {"Pi", 50}}};

void add_prefixed(Units& units, const std::string& unit, bool binary) {
  for (const auto& [prefix, power] : decimal_prefixes) units.push_back({prefix + unit, {power, 0}});
  if (!binary) return;
  for (const auto& [prefix, power] : binary_prefixes) units.push_back({prefix + unit, {0, power}});
}

[[noreturn]] void fail(const Quantity& quantity, std::string_view text, const std::string& why) {
  throw InputError(fmt::format("\"{}\" is not {}: {}", text, quantity.what, why),
                   fmt::format("write for example \"{}\"", quantity.example));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t'; }

std::size_t skip_digits(std::string_view text, std::size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

// What was meant is not guessed: 8 may be bytes or gigabytes.
[[noreturn]] void fail_without_unit(const Quantity& quantity, std::string_view text,
                                    std::string_view number) {
  std::string_view unit = quantity.example;
  while (is_digit(unit.front()) || unit.front() == '.') unit.remove_prefix(1);
  throw InputError(fmt::format("\"{}\" is not {}: the unit is missing", text, quantity.what),
                   fmt::format("write the unit, for example \"{}{}\"", number, unit));
}

// A number as written: the exponent is kept apart, so that a decimal prefix only adds to it and the
// value is rounded once ("160.35T" is the double nearest to 160.35e12).
struct Number {
  std::string_view mantissa;  // digits, at most one point
  int exponent = 0;
  bool is_integer() const { return mantissa.find('.') == std::string_view::npos; }
};

// Reads the number at the start of `text` and removes it. Empty mantissa: there is none.
Number take_number(const Quantity& quantity, std::string_view whole, std::string_view& text) {
  std::size_t end = skip_digits(text, 0);
  const bool digits_before = end > 0;
  if (end < text.size() && text[end] == '.') {
    const std::size_t after = skip_digits(text, end + 1);
    if (!digits_before && after == end + 1) return {};
    end = after;
  }
  Number number{text.substr(0, end), 0};
  if (number.mantissa.empty()) return {};
  text.remove_prefix(end);
  // An exponent only where digits follow: the E of "1EB" is a prefix.
  if (text.empty() || (text[0] != 'e' && text[0] != 'E')) return number;
  const std::size_t sign = text.size() > 1 && (text[1] == '+' || text[1] == '-') ? 2 : 1;
  const std::size_t exponent_end = skip_digits(text, sign);
  if (exponent_end == sign) return number;
  const char* first = text.data() + (sign == 2 && text[1] == '+' ? 2 : 1);
  const auto [_, error] = std::from_chars(first, text.data() + exponent_end, number.exponent);
  if (error != std::errc() || number.exponent < -1000 || number.exponent > 1000) {
    fail(quantity, whole, "the exponent is out of range");
  }
  text.remove_prefix(exponent_end);
  return number;
}

std::pair<Number, Scale> split(const Quantity& quantity, std::string_view whole) {
  std::string_view text = whole;
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (text.empty()) fail(quantity, whole, "it is empty");
  if (text.front() == '-') fail(quantity, whole, "it is negative");
  const Number number = take_number(quantity, whole, text);
  if (number.mantissa.empty()) fail(quantity, whole, "it does not start with a number");
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  for (const auto& [unit, scale] : quantity.units) {
    if (text == unit) return {number, scale};
  }
  if (text.empty()) fail_without_unit(quantity, whole, number.mantissa);
  fail(quantity, whole, fmt::format("\"{}\" is not one of its units", text));
}

double to_double(const Quantity& quantity, std::string_view whole, const Number& number,
                 Scale scale) {
  const std::string text =
      fmt::format("{}e{}", number.mantissa, number.exponent + scale.power_of_ten);
  double value = 0;
  const auto [_, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  SPILLWAY_ASSERT(error == std::errc() || error == std::errc::result_out_of_range, text);
  value = std::ldexp(value, scale.power_of_two);
  if (error != std::errc() || !std::isfinite(value)) fail(quantity, whole, "it is out of range");
  return value;
}

double parse_double(const Quantity& quantity, std::string_view text) {
  const auto [number, scale] = split(quantity, text);
  return to_double(quantity, text, number, scale);
}

// Exact for whole numbers; a fraction of a larger unit is rounded to the nearest whole base unit.
std::uint64_t parse_whole(const Quantity& quantity, std::string_view text, std::uint64_t limit) {
  const auto [number, scale] = split(quantity, text);
  const char* too_large = "it is too large";
  if (number.is_integer() && number.exponent == 0) {
    std::uint64_t value = 0, factor = std::uint64_t{1} << scale.power_of_two;
    for (int i = 0; i < scale.power_of_ten; ++i) factor *= 10;
    const char* end = number.mantissa.data() + number.mantissa.size();
    const auto [_, error] = std::from_chars(number.mantissa.data(), end, value);
    if (error != std::errc() || __builtin_mul_overflow(value, factor, &value) || value > limit) {
      fail(quantity, text, too_large);
    }
    return value;
  }
  const double value = to_double(quantity, text, number, scale);
  if (scale.power_of_ten == 0 && scale.power_of_two == 0 && value != std::floor(value)) {
    fail(quantity, text, "it is not a whole number");
  }
  // The limits are 2^63 - 1 and 2^64 - 1, which round up as doubles: hence >=.
  if (std::round(value) >= static_cast<double>(limit)) fail(quantity, text, too_large);
  return static_cast<std::uint64_t>(std::round(value));
}

Quantity prefixed(const char* what, const char* example, std::initializer_list<const char*> units,
                  bool binary) {
  Quantity quantity{what, example, {}};
  for (const char* unit : units) add_prefixed(quantity.units, unit, binary);
  return quantity;
}

constexpr std::array<const char*, 7> size_prefixes = {"", "k", "M", "G", "T", "P", "E"};

// 1234567 with 2 decimals -> "1.23 M"; the prefix is chosen after rounding, so never "1000.00 k".
std::string format_prefixed(double value, int decimals, const char* unit) {
  if (!std::isfinite(value)) return fmt::format("{} {}", value, unit);
  const double step = std::pow(10.0, -decimals);
  std::size_t prefix = 0;
  while (prefix + 1 < size_prefixes.size() &&
         std::round(std::abs(value) / (prefix == 0 ? 1 : step)) * (prefix == 0 ? 1 : step) >=
             1000) {
    value /= 1000;
    ++prefix;
  }
  return fmt::format("{:.{}f} {}{}", value, prefix == 0 ? 0 : decimals, size_prefixes[prefix],
                     unit);
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text) {
  static const Quantity quantity = prefixed("a size in bytes", "24GB", {"B"}, true);
  if (text == "0") return 0;  // as many in any unit
  return parse_whole(quantity, text, std::numeric_limits<std::uint64_t>::max());
}

double parse_bytes_per_second(std::string_view text) {
  static const Quantity quantity = prefixed("a bandwidth", "21GB/s", {"B/s"}, true);
  return parse_double(quantity, text);
}

double parse_flops_per_second(std::string_view text) {
  static const Quantity quantity =
      prefixed("a compute rate", "160TFLOPS", {"FLOPS", "FLOP/s"}, false);
  return parse_double(quantity, text);
}

double parse_params_per_second(std::string_view text) {
  static const Quantity quantity =
      prefixed("an optimizer rate", "1.2Gparam/s", {"param/s", "params/s"}, false);
  return parse_double(quantity, text);
}

std::int64_t parse_nanoseconds(std::string_view text) {
  static const Quantity quantity{
      "a time", "10us", {{"ns", {}}, {"us", {3, 0}}, {"ms", {6, 0}}, {"s", {9, 0}}}};
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::int64_t>(parse_whole(quantity, text, limit));
}

std::string format_bytes(double bytes) { return format_prefixed(bytes, 2, "B"); }

std::string size_setting(std::uint64_t bytes) {
  std::size_t prefix = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1000 && prefix + 1 < size_prefixes.size(); ++prefix) value /= 1000;
  return fmt::format("{:g}{}B", value, size_prefixes[prefix]);
}

std::uint64_t round_size(std::uint64_t bytes, bool up) {
  std::uint64_t unit = 1;
  while (bytes / unit >= 1000) unit *= 10;
  return (bytes + (up ? unit - 1 : 0)) / unit * unit;
}

std::string format_bytes_per_second(double bytes) { return format_prefixed(bytes, 1, "B/s"); }

std::string format_flops_per_second(double flops) { return format_prefixed(flops, 1, "FLOPS"); }

std::string format_seconds(double seconds) {
  struct Step {
    double unit;
    int decimals;
    const char* name;
  };
  static constexpr std::array<Step, 4> steps = {
      {{1e-9, 0, "ns"}, {1e-6, 0, "us"}, {1e-3, 2, "ms"}, {1, 2, "s"}}};
  if (seconds == 0) return "0 s";
  for (const Step& step : steps) {
    const double value = seconds / step.unit, grid = std::pow(10.0, -step.decimals);
    if (step.unit == 1 || std::round(std::abs(value) / grid) * grid < 1000) {
      return fmt::format("{:.{}f} {}", value, step.decimals, step.name);
    }
  }
  return fmt::format("{} s", seconds);
}

}  // namespace spillway
