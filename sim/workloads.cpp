#include "sim/workloads.hpp"

#include <algorithm>
#include <numeric>
#include <random>

namespace spillway::workloads {

void set_edges(ActivityGraph& graph, std::vector<Edge> edges) {
  std::sort(edges.begin(), edges.end());
  const std::size_t count = graph.activities.size();
  graph.successor_offsets.assign(count + 1, 0);
  graph.predecessor_counts.assign(count, 0);
  graph.successors.clear();
  graph.successors.reserve(edges.size());
  for (const auto& [from, to] : edges) {
    ++graph.successor_offsets[from + 1];
    ++graph.predecessor_counts[to];
    graph.successors.push_back(to);
  }
  std::partial_sum(graph.successor_offsets.begin(), graph.successor_offsets.end(),
                   graph.successor_offsets.begin());
}

std::vector<LaneSpec> lanes(std::size_t count, LaneOrder order) {
  std::vector<LaneSpec> result(count);
  for (std::size_t lane = 0; lane < count; ++lane)
    result[lane] = {"lane " + std::to_string(lane), order, 1};
  return result;
}

ActivityGraph flows(std::vector<Resource> links,
                    const std::vector<std::vector<std::uint32_t>>& routes, std::uint32_t clients,
                    std::uint32_t flow_count) {
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
  graph.activities.reserve(flow_count);
  for (std::uint32_t f = 0; f < flow_count; ++f) {
    const std::uint32_t c = f % clients;
    std::uniform_int_distribution<std::uint64_t> size(1 << 20, 256 << 20);
    const auto demand = static_cast<std::uint32_t>(c % routes.size());
    graph.activities.push_back({c, demand, static_cast<double>(size(random[c])), 0});
  }
  return graph;
}

ActivityGraph one_link(std::uint32_t clients, std::uint32_t flow_count) {
  return flows({{"link", 25e9}}, {{0}}, clients, flow_count);
}

ActivityGraph two_links(std::uint32_t clients, std::uint32_t flow_count) {
  return flows({{"there", 25e9}, {"back", 25e9}}, {{0}, {1}}, clients, flow_count);
}

ActivityGraph five_routes(std::uint32_t clients, std::uint32_t flow_count) {
  return flows(
      {{"ssd read", 7e9}, {"ssd write", 5e9}, {"dram", 60e9}, {"down", 25e9}, {"up", 25e9}},
      {{0, 2}, {1, 2}, {2, 3}, {2, 4}, {2}}, clients, flow_count);
}

ActivityGraph four_resource_dag(std::uint32_t tasks) {
  ActivityGraph graph;
  Demand seconds;
  seconds.rate_cap = 1;
  graph.demands = {seconds};
  graph.lanes = lanes(4, LaneOrder::ready);
  std::mt19937_64 random(42);
  std::uniform_real_distribution<double> duration(1e5, 1e7);
  std::vector<Edge> edges;
  graph.activities.reserve(tasks);
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

}  // namespace spillway::workloads
