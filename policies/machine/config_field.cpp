#include "policies/machine/config_field.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/suggest.hpp"
#include "base/text.hpp"
#include "base/units.hpp"

namespace spillway {

namespace {

Field make_field(std::string key, Field::Form form, std::string example) {
  Field field;
  field.key = std::move(key);
  field.form = form;
  field.example = std::move(example);
  return field;
}

template <class Number>
Number parse_number(const std::string& text, const char* what, const char* example) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    throw InputError(fmt::format("\"{}\" is out of range", text),
                     fmt::format("write for example {}", example));
  }
  bool good = error == std::errc() && stop == end;
  if constexpr (std::is_floating_point_v<Number>) good = good && std::isfinite(value);
  if (!good || value < 0) {
    throw InputError(fmt::format("\"{}\" is not {}", text, what),
                     fmt::format("write for example {}", example));
  }
  return value;
}

// The exact value with the largest prefix that leaves at least one digit before the point:
// 1.6035e14 -> "160.35T". Moves the point in the shortest digits that identify the double.
std::string exact_decimal(double value, const char* unit) {
  SPILLWAY_ASSERT(std::isfinite(value) && value >= 0);
  if (value == 0) return fmt::format("0{}", unit);
  std::array<char, 64> buffer{};
  const auto [end, _] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                      std::chars_format::scientific);
  const std::string text(buffer.data(), end);
  const std::size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  static constexpr std::array<const char*, 6> prefixes = {"", "k", "M", "G", "T", "P"};
  if (exponent < 0 || exponent >= 18) return text + unit;
  std::string digits = text.substr(0, 1) + (e > 2 ? text.substr(2, e - 2) : "");
  const std::size_t before = static_cast<std::size_t>(exponent % 3) + 1;
  if (digits.size() < before) digits.resize(before, '0');
  std::string number = digits.substr(0, before);
  if (digits.size() > before) number.append(".").append(digits, before);
  return number + prefixes[static_cast<std::size_t>(exponent / 3)] + unit;
}

// The whole value in the largest unit that divides it.
std::string exact_whole(std::uint64_t value,
                        std::initializer_list<std::pair<std::uint64_t, const char*>> units) {
  for (const auto& [size, name] : units) {
    if (value >= size && value % size == 0) return fmt::format("{}{}", value / size, name);
  }
  return fmt::format("{}{}", value, (units.end() - 1)->second);
}

// Four significant digits: 1.008e12 -> "1.008 TB/s".
std::string shown_rate(double rate, const char* unit) {
  static constexpr std::array<const char*, 6> prefixes = {"", "k", "M", "G", "T", "P"};
  constexpr double rounds_up = 999.95;  // to four digits
  std::size_t prefix = 0;
  for (; prefix + 1 < prefixes.size() && rate >= rounds_up; ++prefix) rate /= 1000;
  return fmt::format("{:.4g} {}{}", rate, prefixes[prefix], unit);
}

template <class Parse>
Field rate_field(std::string key, double& value, const char* example, const char* unit,
                 Parse parse) {
  Field field = make_field(std::move(key), Field::Form::text, example);
  field.set = [&value, parse](const std::string& text) { value = parse(text); };
  field.get = [&value, unit] { return exact_decimal(value, unit); };
  field.show = [&value, unit] { return shown_rate(value, unit); };
  return field;
}

}  // namespace

std::string shown(const Field& field) { return field.show ? field.show() : field.get(); }

void require_printable(const std::string& text) {
  // A text of several lines is one by any other.
  std::string one_line = text;
  std::replace_if(
      one_line.begin(), one_line.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  if (const auto found = find_unprintable(one_line)) {
    throw InputError("the text holds " + *found, "write it without, in UTF-8");
  }
}

Field text_field(std::string key, std::string& value, std::string example) {
  Field field = make_field(std::move(key), Field::Form::text, "\"" + example + "\"");
  field.set = [&value](const std::string& text) {
    require_printable(text);
    value = text;
  };
  field.get = [&value] { return value; };
  return field;
}

Field flag_field(std::string key, bool& value) {
  Field field = make_field(std::move(key), Field::Form::flag, "true");
  field.set = [&value](const std::string& text) {
    if (text != "true" && text != "false") {
      throw InputError(fmt::format("\"{}\" is neither true nor false", text),
                       "write true or false");
    }
    value = text == "true";
  };
  field.get = [&value] { return std::string(value ? "true" : "false"); };
  return field;
}

Field count_field(std::string key, std::int64_t& value) {
  Field field = make_field(std::move(key), Field::Form::number, "12");
  field.set = [&value](const std::string& text) {
    value = parse_number<std::int64_t>(text, "a whole number", "12");
  };
  field.get = [&value] { return std::to_string(value); };
  return field;
}

Field number_field(std::string key, double& value) {
  Field field = make_field(std::move(key), Field::Form::number, "0.5");
  field.set = [&value](const std::string& text) {
    value = parse_number<double>(text, "a number of zero or more", "0.5");
  };
  field.get = [&value] { return fmt::format("{}", value); };
  field.show = [&value] { return fmt::format("{:.4g}", value); };
  return field;
}

Field bytes_field(std::string key, std::uint64_t& value) {
  Field field = make_field(std::move(key), Field::Form::text, "\"24GB\"");
  field.set = [&value](const std::string& text) { value = parse_bytes(text); };
  field.get = [&value] {
    return exact_whole(value, {{1'000'000'000'000, "TB"},
                               {std::uint64_t{1} << 40, "TiB"},
                               {1'000'000'000, "GB"},
                               {std::uint64_t{1} << 30, "GiB"},
                               {1'000'000, "MB"},
                               {std::uint64_t{1} << 20, "MiB"},
                               {1, "B"}});
  };
  field.show = [&value] { return format_bytes(static_cast<double>(value)); };
  return field;
}

Field bandwidth_field(std::string key, double& value) {
  return rate_field(std::move(key), value, "\"21GB/s\"", "B/s", parse_bytes_per_second);
}

Field flops_field(std::string key, double& value) {
  return rate_field(std::move(key), value, "\"160TFLOPS\"", "FLOPS", parse_flops_per_second);
}

Field params_per_second_field(std::string key, double& value) {
  return rate_field(std::move(key), value, "\"1.2Gparam/s\"", "param/s", parse_params_per_second);
}

Field nanoseconds_field(std::string key, std::int64_t& value) {
  Field field = make_field(std::move(key), Field::Form::text, "\"10us\"");
  field.set = [&value](const std::string& text) { value = parse_nanoseconds(text); };
  field.get = [&value] {
    return exact_whole(static_cast<std::uint64_t>(value),
                       {{1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "us"}, {1, "ns"}});
  };
  field.show = [&value] { return format_seconds(static_cast<double>(value) * 1e-9); };
  return field;
}

void fail_unknown_choice(const std::string& text, const std::vector<std::string>& names) {
  throw InputError(fmt::format("unknown value \"{}\"", text), unknown_name_hint(text, names));
}

std::vector<std::string> keys_of(const std::vector<Field>& fields) {
  std::vector<std::string> keys;
  std::transform(fields.begin(), fields.end(), std::back_inserter(keys),
                 [](const Field& field) { return field.key; });
  return keys;
}

void set_field(const std::vector<Field>& fields, const std::string& key, const std::string& value) {
  for (const Field& field : fields) {
    if (field.key == key) return field.set(value);
  }
  throw InputError(fmt::format("unknown key {}", key), unknown_name_hint(key, keys_of(fields)));
}

}  // namespace spillway
