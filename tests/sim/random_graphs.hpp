// Random activity graphs of every shape the engine takes, for the tests of its properties.
#pragma once

#include <cstdint>
#include <random>

#include "sim/engine.hpp"

namespace spillway::test {

struct GraphShape {
  bool contention = true;    // else every resource has enough for all
  bool ready_lanes = false;  // some lanes serve in the order things become ready
  std::uint32_t most_activities = 120;
  std::uint32_t most_resources = 12;
};

// Edges point forward. Demands use any number of the resources, with rate caps and weights; lanes
// are up to four wide; some activities have no work, some a latency.
ActivityGraph random_activity_graph(std::mt19937_64& random, const GraphShape& shape);

// The same graph with its activities in another order, which keeps the order within each lane;
// new_index[a] is where activity a went.
struct Relabelled {
  ActivityGraph graph;
  std::vector<std::uint32_t> new_index;
};
Relabelled relabel(const ActivityGraph& graph, std::mt19937_64& random);

// Both graphs side by side; the activities of the first come first.
ActivityGraph side_by_side(const ActivityGraph& left, const ActivityGraph& right);

}  // namespace spillway::test
