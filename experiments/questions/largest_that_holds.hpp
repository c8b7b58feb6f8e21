// The search for a size: what fits is nearly, but not quite, monotone in it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spillway {

// A value up to `most` for which `holds`, where it holds for `low`, and for none of the few values
// above it: by doubling, bisection, and a look at the neighbours, since a larger size may be packed
// tighter. `holds` is asked again for values it was asked before.
template <class Holds>
std::int64_t largest_that_holds(std::int64_t low, std::int64_t most, const Holds& holds) {
  constexpr std::int64_t neighbours = 3;
  std::int64_t high = most + 1;
  while (low < most) {
    const std::int64_t next = low > most / 2 ? most : 2 * low;
    if (!holds(next)) {
      high = next;
      break;
    }
    low = next;
  }
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (holds(middle) ? low : high) = middle;
  }
  for (std::int64_t above = low + 1; above <= std::min(most, low + neighbours); ++above) {
    if (holds(above)) low = above;
  }
  return low;
}

}  // namespace spillway
