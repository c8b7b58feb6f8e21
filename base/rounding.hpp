// Multiples of a number.
#pragma once

#include <type_traits>

namespace spillway {

// The least multiple of `to` that is not below `value`, and the largest that is not above it. Both
// arguments are at least 0, and `to` is above it.
template <class Number>
constexpr Number round_up(Number value, std::type_identity_t<Number> to) {
  return (value + to - 1) / to * to;
}
template <class Number>
constexpr Number round_down(Number value, std::type_identity_t<Number> to) {
  return value / to * to;
}

}  // namespace spillway
