// The search for a size: what fits is nearly, but not quite, monotone in it, since a larger size
// may be packed tighter.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spillway {

// So many values beyond the one that is found are looked at.
inline constexpr std::int64_t neighbours_tried = 3;

// A value up to `most` for which `holds`, where it holds for `low`, and for none of the few values
// above it: by doubling and bisection. `holds` is asked again for values it was asked before.
template <class Holds>
std::int64_t largest_that_holds(std::int64_t low, std::int64_t most, const Holds& holds) {
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
  for (std::int64_t above = low + 1; above <= std::min(most, low + neighbours_tried); ++above) {
    if (holds(above)) low = above;
  }
  return low;
}

// A value from `least` on for which `holds`, where it holds for `high`, and for none of the few
// values below it: by bisection. `holds` is asked again for values it was asked before.
template <class Holds>
std::int64_t smallest_that_holds(std::int64_t least, std::int64_t high, const Holds& holds) {
  std::int64_t low = least - 1;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (holds(middle) ? high : low) = middle;
  }
  for (std::int64_t below = high - 1; below >= std::max(least, high - neighbours_tried); --below) {
    if (holds(below)) high = below;
  }
  return high;
}

}  // namespace spillway
