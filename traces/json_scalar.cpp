#include "traces/json_scalar.hpp"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace spillway::trace_format {

std::optional<double> real(const Scalar& value) {
  switch (value.type) {
    case Scalar::Type::real:
      return value.real;
    case Scalar::Type::natural:
      return static_cast<double>(value.natural);
    case Scalar::Type::negative:
      return static_cast<double>(value.negative);
    default:
      return std::nullopt;
  }
}

std::optional<std::int64_t> nanoseconds(const Scalar& microseconds) {
  const std::optional<double> approximate = real(microseconds);
  if (!approximate || std::abs(*approximate) > 9e15) return std::nullopt;
  if (const auto whole = integer<std::int64_t>(microseconds)) return *whole * 1000;

  std::string digits = microseconds.text;
  const std::size_t point = digits.find('.');
  const std::size_t decimals = point == std::string::npos ? 0 : digits.size() - point - 1;
  if (decimals < 1 || decimals > 3 || digits.find_first_of("eE") != std::string::npos) {
    return std::llround(*approximate * 1000);  // another tool has written the number anew
  }
  digits.erase(point, 1);
  digits.append(3 - decimals, '0');
  std::int64_t ns = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), ns);
  return ns;
}

std::string json_text(const Scalar& value) {
  switch (value.type) {
    case Scalar::Type::null:
      return "null";
    case Scalar::Type::boolean:
      return value.truth ? "true" : "false";
    case Scalar::Type::negative:
      return std::to_string(value.negative);
    case Scalar::Type::natural:
      return std::to_string(value.natural);
    case Scalar::Type::real:
      return nlohmann::json(value.real).dump();
    case Scalar::Type::string:
      break;
  }
  return nlohmann::json(value.text).dump();
}

}  // namespace spillway::trace_format
