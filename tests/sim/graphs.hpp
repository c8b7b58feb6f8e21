// Activity graphs for the engine's tests: a builder, and the golden workloads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "sim/engine.hpp"

namespace spillway::test {

using Edge = std::pair<std::uint32_t, std::uint32_t>;

// Fills the successor lists (ascending) and predecessor counts of `graph`.
inline void set_edges(ActivityGraph& graph, std::vector<Edge> edges) {
  std::sort(edges.begin(), edges.end());
  const std::size_t count = graph.activities.size();
  graph.successor_offsets.assign(count + 1, 0);
  graph.predecessor_counts.assign(count, 0);
  graph.successors.clear();
  for (const auto& [from, to] : edges) {
    ++graph.successor_offsets[from + 1];
    ++graph.predecessor_counts[to];
    graph.successors.push_back(to);
  }
  std::partial_sum(graph.successor_offsets.begin(), graph.successor_offsets.end(),
                   graph.successor_offsets.begin());
}

inline std::vector<LaneSpec> lanes(std::size_t count, LaneOrder order = LaneOrder::index) {
  std::vector<LaneSpec> result(count);
  for (std::size_t lane = 0; lane < count; ++lane)
    result[lane] = {"lane " + std::to_string(lane), order, 1};
  return result;
}

inline std::int64_t makespan_ns(const std::vector<ActivityTimes>& times) {
  std::int64_t end = 0;
  for (const ActivityTimes& t : times) end = std::max(end, t.end_ns);
  return end;
}

inline double makespan(const ActivityGraph& graph) {
  return static_cast<double>(makespan_ns(run_events(graph))) * 1e-9;
}

// `clients` send `flows` flows: client c sends c, c + clients, ... one after another, over
// routes[c mod routes], sizes from its own generator.
inline ActivityGraph flows(std::vector<Resource> links,
                           const std::vector<std::vector<std::uint32_t>>& routes,
                           std::uint32_t clients, std::uint32_t flow_count) {
  ActivityGraph graph;
  graph.resources = std::move(links);
  for (const auto& route : routes) {
    Demand demand;
    for (const std::uint32_t link : route) demand.uses(link, 1);
    graph.demands.push_back(demand);
  }
  graph.lanes = lanes(clients);
  std::vector<std::mt19937_64> random;
  for (std::uint32_t c = 0; c < clients; ++c) random.emplace_back(1000 + c);
  for (std::uint32_t f = 0; f < flow_count; ++f) {
    const std::uint32_t c = f % clients;
    std::uniform_int_distribution<std::uint64_t> size(1 << 20, 256 << 20);
    const auto demand = static_cast<std::uint32_t>(c % routes.size());
    graph.activities.push_back({c, demand, static_cast<double>(size(random[c])), 0});
  }
  return graph;
}

inline ActivityGraph one_link(std::uint32_t clients, std::uint32_t flow_count) {
  return flows({{"link", 25e9}}, {{0}}, clients, flow_count);
}

inline ActivityGraph two_links(std::uint32_t clients, std::uint32_t flow_count) {
  return flows({{"there", 25e9}, {"back", 25e9}}, {{0}, {1}}, clients, flow_count);
}

inline ActivityGraph five_routes(std::uint32_t clients, std::uint32_t flow_count) {
  return flows(
      {{"ssd read", 7e9}, {"ssd write", 5e9}, {"dram", 60e9}, {"down", 25e9}, {"up", 25e9}},
      {{0, 2}, {1, 2}, {2, 3}, {2, 4}, {2}}, clients, flow_count);
}

// Tasks on four resources that serve in the order tasks become ready: task i, k = i mod 10, runs on
// r0 if k = 0, else on r(1 + (k-1)/3).
inline ActivityGraph four_resource_dag(std::uint32_t tasks) {
  ActivityGraph graph;
  Demand seconds;
  seconds.rate_cap = 1;
  graph.demands = {seconds};
  graph.lanes = lanes(4, LaneOrder::ready);
  std::mt19937_64 random(42);
  std::uniform_real_distribution<double> duration(1e5, 1e7);
  std::vector<Edge> edges;
  for (std::uint32_t i = 0; i < tasks; ++i) {
    const std::uint32_t k = i % 10;
    graph.activities.push_back({k == 0 ? 0 : 1 + (k - 1) / 3, 0, duration(random) / 1e9, 0});
    if (k > 0) edges.emplace_back(i - k, i);
    if (k == 0 && i >= 10) edges.emplace_back(i - 10, i);
    if (k == 0 && i >= 20) edges.emplace_back(i - 11, i);
  }
  set_edges(graph, std::move(edges));
  return graph;
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
