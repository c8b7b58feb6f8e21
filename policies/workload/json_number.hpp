// Whole numbers from JSON. nlohmann's own conversions take -1 and 1e300 for an unsigned number,
// too, and make another number of them. For .cpp files that read JSON.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

// object[key]. Throws InputError, `place` first, where it is no whole number that an Integer holds;
// json::exception where there is none, or `object` is no object.
template <class Integer, class Json>
Integer whole_number(const Json& object, const std::string& key, const std::string& place) {
  const Json& value = object.at(key);
  if (value.is_number_unsigned()) {
    const auto number = value.template get<std::uint64_t>();
    if (std::in_range<Integer>(number)) return static_cast<Integer>(number);
  } else if (value.is_number_integer()) {
    const auto number = value.template get<std::int64_t>();
    if (std::in_range<Integer>(number)) return static_cast<Integer>(number);
  }
  throw InputError(fmt::format("{}: {} is {}, not a whole number from {} to {}", place, key,
                               value.is_number() ? value.dump() : std::string(value.type_name()),
                               std::numeric_limits<Integer>::min(),
                               std::numeric_limits<Integer>::max()));
}

}  // namespace spillway
