// Activity graphs for the engine's tests, beside those of sim/workloads.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "sim/engine.hpp"
#include "sim/workloads.hpp"

namespace spillway::test {

using namespace spillway::workloads;

inline std::int64_t makespan_ns(const std::vector<ActivityTimes>& times) {
  std::int64_t end = 0;
  for (const ActivityTimes& t : times) end = std::max(end, t.end_ns);
  return end;
}

inline double makespan(const ActivityGraph& graph) {
  return static_cast<double>(makespan_ns(run_events(graph))) * 1e-9;
}

// A random graph of the kind a schedule is: forward edges, lanes in index order, shared resources.
inline ActivityGraph random_graph(std::mt19937_64& random, bool shared) {
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  ActivityGraph graph;
  const std::uint32_t lane_count = 1 + below(6);
  graph.lanes = lanes(lane_count);
  for (LaneSpec& lane : graph.lanes) lane.width = 1 + below(3);
  const std::uint32_t resource_count = shared ? 1 + below(4) : lane_count;
  for (std::uint32_t r = 0; r < resource_count; ++r) {
    // Without sharing: enough for every place of the only lane that uses it.
    const double capacity = (1 + below(1000)) * 1e6;
    graph.resources.push_back({"resource " + std::to_string(r), shared ? capacity : 1e12});
  }
  for (std::uint32_t d = 0; d < 2 * lane_count; ++d) {
    Demand demand;
    demand.rate_cap = (1 + below(1000)) * 1e6;
    demand.weight = 1 + below(3);
    demand.uses(shared ? below(resource_count) : d % lane_count, 0.5 + below(4));
    graph.demands.push_back(demand);
  }
  std::vector<Edge> edges;
  const std::uint32_t count = 1 + below(200);
  for (std::uint32_t a = 0; a < count; ++a) {
    const std::uint32_t lane = below(lane_count);
    const double amount = below(8) == 0 ? 0 : 1e3 * below(1000000);
    const std::int64_t latency = below(3) == 0 ? below(100000) : 0;
    graph.activities.push_back({lane, lane + lane_count * below(2), amount, latency});
    for (std::uint32_t e = below(4); e > 0 && a > 0; --e) edges.emplace_back(below(a), a);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  set_edges(graph, std::move(edges));
  return graph;
}

}  // namespace spillway::test
