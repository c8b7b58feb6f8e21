#include "tests/sim/random_graphs.hpp"

#include <algorithm>

#include "tests/sim/graphs.hpp"

namespace spillway::test {

namespace {

std::vector<Edge> edges_of(const ActivityGraph& graph, std::uint32_t shift = 0) {
  std::vector<Edge> edges;
  for (std::uint32_t a = 0; a + 1 < graph.successor_offsets.size(); ++a) {
    for (std::uint32_t e = graph.successor_offsets[a]; e < graph.successor_offsets[a + 1]; ++e)
      edges.emplace_back(a + shift, graph.successors[e] + shift);
  }
  return edges;
}

}  // namespace

ActivityGraph random_activity_graph(std::mt19937_64& random, const GraphShape& shape) {
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  const auto real = [&](double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random);
  };
  ActivityGraph graph;
  graph.lanes = lanes(1 + below(8));
  for (LaneSpec& lane : graph.lanes) {
    lane.width = 1 + below(4);
    if (shape.ready_lanes && below(2) == 0) lane.order = LaneOrder::ready;
  }
  for (std::uint32_t r = 0, n = 1 + below(shape.most_resources); r < n; ++r)
    graph.resources.push_back({"r" + std::to_string(r), shape.contention ? real(1e6, 1e9) : 1e13});
  for (std::uint32_t d = 0, n = 1 + below(10); d < n; ++d) {
    Demand demand;
    if (!shape.contention || below(2) == 0) demand.rate_cap = real(1e6, 1e9);
    demand.weight = below(2) == 0 ? 1 : real(0.1, 4);
    for (std::uint32_t r = 0; r < graph.resources.size(); ++r) {
      if (below(3) == 0) demand.uses(r, below(2) == 0 ? 1 : real(0.01, 10));
    }
    if (demand.usages.empty()) demand.uses(0, 1);
    graph.demands.push_back(demand);
  }
  std::vector<Edge> edges;
  for (std::uint32_t a = 0, n = 1 + below(shape.most_activities); a < n; ++a) {
    graph.activities.push_back({below(static_cast<std::uint32_t>(graph.lanes.size())),
                                below(static_cast<std::uint32_t>(graph.demands.size())),
                                below(10) == 0 ? 0 : real(1e3, 1e9),
                                below(3) == 0 ? below(100000000) : 0});
    for (std::uint32_t e = below(3); e > 0 && a > 0; --e) edges.emplace_back(below(a), a);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  set_edges(graph, std::move(edges));
  return graph;
}

Relabelled relabel(const ActivityGraph& graph, std::mt19937_64& random) {
  // The lanes' sequences, merged at random.
  std::vector<std::vector<std::uint32_t>> by_lane(graph.lanes.size());
  std::vector<std::uint32_t> turns;
  for (std::uint32_t a = 0; a < graph.activities.size(); ++a) {
    by_lane[graph.activities[a].lane].push_back(a);
    turns.push_back(graph.activities[a].lane);
  }
  std::shuffle(turns.begin(), turns.end(), random);
  std::vector<std::size_t> taken(graph.lanes.size(), 0);
  Relabelled result{graph, std::vector<std::uint32_t>(turns.size())};
  for (std::uint32_t i = 0; i < turns.size(); ++i) {
    const std::uint32_t a = by_lane[turns[i]][taken[turns[i]]++];
    result.new_index[a] = i;
    result.graph.activities[i] = graph.activities[a];
  }
  std::vector<Edge> edges = edges_of(graph);
  for (auto& [from, to] : edges) {
    from = result.new_index[from];
    to = result.new_index[to];
  }
  set_edges(result.graph, std::move(edges));
  return result;
}

ActivityGraph side_by_side(const ActivityGraph& left, const ActivityGraph& right) {
  ActivityGraph both = left;
  const auto shift = [](const auto& list) { return static_cast<std::uint32_t>(list.size()); };
  both.resources.insert(both.resources.end(), right.resources.begin(), right.resources.end());
  for (Demand demand : right.demands) {
    for (Usage& usage : demand.usages) usage.resource += shift(left.resources);
    both.demands.push_back(std::move(demand));
  }
  both.lanes.insert(both.lanes.end(), right.lanes.begin(), right.lanes.end());
  for (Activity activity : right.activities) {
    activity.lane += shift(left.lanes);
    activity.demand += shift(left.demands);
    both.activities.push_back(activity);
  }
  std::vector<Edge> edges = edges_of(left);
  const std::vector<Edge> more = edges_of(right, shift(left.activities));
  edges.insert(edges.end(), more.begin(), more.end());
  set_edges(both, std::move(edges));
  return both;
}

}  // namespace spillway::test
