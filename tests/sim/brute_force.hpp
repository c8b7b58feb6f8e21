// The engine's rules, followed in the plainest way, as an oracle: at every event all rates are
// found anew, activity by activity, and every activity is looked at. Quadratic and worse.
#pragma once

#include <vector>

#include "sim/engine.hpp"

namespace spillway::test {

// Seconds, by activity.
struct PlainTimes {
  long double start = -1, end = -1;
};

// The graph must be able to run to its end.
std::vector<PlainTimes> brute_force(const ActivityGraph& graph);

// The rates of activities with these demands that run together: all rise together, in proportion to
// their weights, and stop one after the other.
std::vector<long double> water_fill(const ActivityGraph& graph,
                                    const std::vector<std::uint32_t>& demands);

}  // namespace spillway::test
