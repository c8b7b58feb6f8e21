// Intervals of time that overlap, as pieces that do not: at each moment the foremost one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway {

struct Interval {
  std::int64_t start = 0, end = 0;
  std::size_t rank = 0;  // the least is the foremost
  std::size_t id = 0;    // whose it is; among equal ranks the least is the foremost
};

// Disjoint pieces in order of time, together all time that any interval has: each belongs to the
// foremost of the intervals that are open then. Pieces of one id that touch are one.
std::vector<Interval> foremost(std::vector<Interval> intervals);

}  // namespace spillway
