// What a run costs, in operations: it grows with the number of activities and no faster.
#include <catch2/catch.hpp>

#include "tests/sim/graphs.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

EngineCounts counts_of(const ActivityGraph& graph) {
  EngineCounts counts;
  run_events(graph, &counts);
  return counts;
}

// Twice the activities: the same operations and bytes for each, to 3 %.
void check_linear(ActivityGraph (*make)(std::uint32_t), std::uint32_t size) {
  const EngineCounts once = counts_of(make(size)), twice = counts_of(make(2 * size));
  CHECK(static_cast<double>(twice.operations()) < 2.06 * static_cast<double>(once.operations()));
  CHECK(static_cast<double>(twice.memory_bytes) < 2.06 * static_cast<double>(once.memory_bytes));
}

}  // namespace

TEST_CASE("Twice the activities cost twice the operations: flows, task graphs") {
  for (const std::uint32_t size : {10000U, 80000U}) {
    INFO("size " << size);
    check_linear(four_resource_dag, size);
    check_linear([](std::uint32_t n) { return one_link(64, n); }, size);
    check_linear([](std::uint32_t n) { return five_routes(20, n); }, size);
    check_linear([](std::uint32_t n) { return five_routes(64, n); }, size);
  }
}

TEST_CASE("Twice the activities cost twice the operations: a queue that never empties") {
  // Everything is ready at once and waits in the queue of one lane.
  check_linear(
      [](std::uint32_t n) {
        ActivityGraph graph;
        graph.resources = {{"r", 1e9}};
        graph.demands = {Demand().uses(0, 1)};
        graph.lanes = lanes(1, LaneOrder::ready);
        graph.activities.assign(n, {0, 0, 1, 0});
        return graph;
      },
      10000);
}

TEST_CASE("Twice the activities cost twice the operations: one that all others wait for") {
  check_linear(
      [](std::uint32_t n) {
        ActivityGraph graph;
        graph.resources = {{"r", 1e9}};
        graph.demands = {Demand().uses(0, 1)};
        graph.lanes = lanes(4);
        std::vector<Edge> edges;
        for (std::uint32_t a = 0; a < n; ++a) {
          graph.activities.push_back({a % 4, 0, 1.0 + a % 7, 0});
          if (a > 0) edges.emplace_back(0, a);
        }
        set_edges(graph, std::move(edges));
        return graph;
      },
      10000);
}

TEST_CASE("More at once costs its logarithm: 1024 flows at once against 32") {
  // log2(1024) / log2(32) = 2: no more than twice the operations per flow.
  const auto operations = [](std::uint32_t clients) {
    return static_cast<double>(counts_of(one_link(clients, 100000)).operations());
  };
  CHECK(operations(1024) < 2 * operations(32));
}

TEST_CASE("Rates are solved only when the mix of demands changes, and only where") {
  // Four clients over one link, each flow followed by the next: once when they start, and once when
  // each of the clients has no more to send (the last leaves nobody to solve for).
  CHECK(counts_of(one_link(4, 1000)).solutions <= 5);
  // 100 links side by side, each with two clients: an end changes the rates of one link only.
  std::vector<Resource> links(100, Resource{"link", 1e9});
  std::vector<std::vector<std::uint32_t>> routes;
  for (std::uint32_t link = 0; link < 100; ++link) routes.push_back({link});
  const EngineCounts counts = counts_of(flows(links, routes, 200, 20000));
  CHECK(counts.demands_visited <= 4 * 200);
}

TEST_CASE("A run needs 24 bytes per activity beside the graph") {
  // 16 for its times, 4 for its place in a queue, 4 for the predecessors it waits for.
  const EngineCounts counts = counts_of(one_link(8, 100000));
  CHECK(counts.memory_bytes >= 24 * 100000);
  CHECK(counts.memory_bytes < 24 * 100000 + 10000);
}

TEST_CASE("Counts add up over runs") {
  const ActivityGraph graph = one_link(8, 1000);
  EngineCounts counts;
  run_events(graph, &counts);
  const std::uint64_t once = counts.operations();
  run_events(graph, &counts);
  CHECK(counts.operations() == 2 * once);
}
