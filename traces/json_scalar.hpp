// A number, string, boolean or null as a JSON parser hands it over, and what it can be read as.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace spillway::trace_format {

struct Scalar {
  enum class Type { null, boolean, negative, natural, real, string } type = Type::null;
  bool truth = false;
  std::int64_t negative = 0;  // a whole number below zero
  std::uint64_t natural = 0;  // a whole number from zero up
  double real = 0;            // any other number
  std::string text = {};      // of a string; of a real number, its digits as they were written
};

// nullopt: not a whole number, or out of range.
template <class Integer>
std::optional<Integer> integer(const Scalar& value) {
  if (value.type == Scalar::Type::natural && std::in_range<Integer>(value.natural)) {
    return static_cast<Integer>(value.natural);
  }
  if (value.type == Scalar::Type::negative && std::in_range<Integer>(value.negative)) {
    return static_cast<Integer>(value.negative);
  }
  return std::nullopt;
}

// nullopt: not a number.
std::optional<double> real(const Scalar& value);

// Microseconds as nanoseconds, digit for digit, since a double loses the last ones after some days.
// nullopt: not a number, or out of range.
std::optional<std::int64_t> nanoseconds(const Scalar& microseconds);

// The value as JSON text.
std::string json_text(const Scalar& value);

}  // namespace spillway::trace_format
