// Is every pair of conflicting tasks ordered? Found out without the code that derives the
// dependencies.
#pragma once

#include <string>

#include "policies/schedule/schedule.hpp"

namespace spillway::test {

// Two tasks conflict when they touch a common byte of a tier's arena and one of them writes it.
// They are ordered when a path of edges and lane order leads from one to the other, which vector
// clocks tell: per task and lane, how many tasks of that lane certainly ended before. Returns the
// first conflict that is not ordered, in words; empty when there is none.
std::string find_race(const Schedule& schedule);

// Whether a path of edges and lane order leads from one task to another.
bool certainly_before(const Schedule& schedule, TaskId first, TaskId second);

// No two buffers alive at the same time (first to last use, both included) share a byte of a tier.
// Returns the first pair that does, in words; empty when there is none.
std::string find_overlap(const Schedule& schedule);

}  // namespace spillway::test
