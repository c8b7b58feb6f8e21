#include "sim/engine.hpp"

#include <catch2/catch.hpp>

#include "tests/sim/graphs.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// One resource "r" of `capacity`, one demand of one unit of it per unit of work.
ActivityGraph on_one_resource(double capacity, std::size_t lane_count) {
  ActivityGraph graph;
  graph.resources = {{"r", capacity}};
  graph.demands = {Demand().uses(0, 1)};
  graph.lanes = lanes(lane_count);
  return graph;
}

}  // namespace

TEST_CASE("No activities: nothing happens") {
  CHECK(run_events(ActivityGraph()).empty());
  CHECK(simulate_activities(ActivityGraph()).empty());
}

TEST_CASE("Alone, an activity takes latency + amount / rate") {
  // 500 ns + 2e9 / 1e9 per s = 2 s + 500 ns.
  ActivityGraph graph = on_one_resource(1e9, 1);
  graph.activities = {{0, 0, 2e9, 500}};
  CHECK(run_events(graph)[0] == ActivityTimes{0, 2000000500});
}

TEST_CASE("Two equal activities share a resource and take twice as long") {
  ActivityGraph graph = on_one_resource(1e9, 2);
  graph.activities = {{0, 0, 1e9, 0}, {1, 0, 1e9, 0}};
  const auto times = run_events(graph);
  CHECK(times[0] == ActivityTimes{0, 2000000000});
  CHECK(times[1] == ActivityTimes{0, 2000000000});
}

TEST_CASE("An activity that joins later slows the one that runs, and only from then on") {
  // A (3 units) alone for 1 s, 2 left; then A and B (1 unit) at 1/2 each: B ends at 1 + 2 = 3, A
  // has 1 left: 4. B joins after a latency of 1 s, in which it uses nothing.
  ActivityGraph graph = on_one_resource(1, 2);
  graph.activities = {{0, 0, 3, 0}, {1, 0, 1, 1000000000}};
  const auto times = run_events(graph);
  CHECK(times[1] == ActivityTimes{0, 3000000000});
  CHECK(times[0] == ActivityTimes{0, 4000000000});
}

TEST_CASE("A lane serves one after the other, in index order, and holds up what is ready behind") {
  // Lane 0 runs 0 (1 s) then 2, then 3; 2 waits for 1 (5 s on lane 1), so 3 waits too although it
  // is ready.
  ActivityGraph graph;
  Demand seconds;
  seconds.rate_cap = 1;
  graph.demands = {seconds};
  graph.lanes = lanes(2);
  graph.activities = {{0, 0, 1, 0}, {1, 0, 5, 0}, {0, 0, 1, 0}, {0, 0, 1, 0}};
  set_edges(graph, {{1, 2}});
  auto times = run_events(graph);
  CHECK(times[2] == ActivityTimes{5000000000, 6000000000});
  CHECK(times[3] == ActivityTimes{6000000000, 7000000000});

  // First ready, first served: 3 goes before 2.
  graph.lanes[0].order = LaneOrder::ready;
  times = run_events(graph);
  CHECK(times[3] == ActivityTimes{1000000000, 2000000000});
  CHECK(times[2] == ActivityTimes{5000000000, 6000000000});
}

TEST_CASE("A lane of width two runs two at once and starts them in order") {
  // 3 s, 1 s, 1 s, 1 s on two places: starts 0, 0, 1, 2.
  ActivityGraph graph;
  Demand seconds;
  seconds.rate_cap = 1;
  graph.demands = {seconds};
  graph.lanes = lanes(1);
  graph.lanes[0].width = 2;
  graph.activities = {{0, 0, 3, 0}, {0, 0, 1, 0}, {0, 0, 1, 0}, {0, 0, 1, 0}};
  const auto times = run_events(graph);
  CHECK(times[2].start_ns == 1000000000);
  CHECK(times[3].start_ns == 2000000000);
  CHECK(makespan_ns(times) == 3000000000);
  CHECK(longest_path(graph) == times);
}

TEST_CASE("Activities without work or latency end when they start") {
  ActivityGraph graph = on_one_resource(1, 3);
  graph.activities = {{0, 0, 1, 0}, {1, 0, 0, 0}, {1, 0, 0, 0}, {2, 0, 1, 0}};
  set_edges(graph, {{0, 1}, {2, 3}});
  const auto times = run_events(graph);
  CHECK(times[1] == ActivityTimes{1000000000, 1000000000});
  CHECK(times[2] == ActivityTimes{1000000000, 1000000000});
  CHECK(times[3] == ActivityTimes{1000000000, 2000000000});
}

TEST_CASE("Rounding does not add up along a chain") {
  // 100000 transfers of 1 byte at 3e6 bytes/s, 333.33 ns each, end at 33333333.33 ns; whole
  // nanoseconds each would make it 33300000 or 33400000.
  ActivityGraph graph = on_one_resource(3e6, 1);
  graph.activities.assign(100000, {0, 0, 1, 0});
  CHECK(makespan_ns(run_events(graph)) == 33333333);
  CHECK(makespan_ns(longest_path(graph)) == 33333333);
}

TEST_CASE(
    "Random graphs without contention: the events agree with one longest-path pass, bit for bit") {
  const std::uint64_t seed = 7;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    const ActivityGraph graph = random_graph(random, false);
    REQUIRE(runs_without_contention(graph));
    REQUIRE(run_events(graph) == longest_path(graph));
  }
}

TEST_CASE("Random graphs with contention: bounds, repetition, scaling") {
  const std::uint64_t seed = 11;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int contended = 0;
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    ActivityGraph graph = random_graph(random, true);
    const auto times = run_events(graph);
    const double simulated = static_cast<double>(makespan_ns(times));

    // The same input gives the same times.
    REQUIRE(run_events(graph) == times);

    // At least the longest path and every resource's demand / capacity; at most everything one
    // after the other.
    const FairSharing sharing(graph.resources, graph.demands);
    double serial = 0;
    std::vector<double> needed(graph.resources.size(), 0);
    for (const Activity& activity : graph.activities) {
      serial += uncontended_ns(activity, sharing);
      const Demand& demand = graph.demands[activity.demand];
      for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
        const Usage& usage = demand.usages[u];
        needed[usage.resource] +=
            activity.amount * usage.per_unit / graph.resources[usage.resource].capacity * 1e9;
      }
    }
    REQUIRE(simulated <= serial + 2);
    REQUIRE(simulated >= *std::max_element(needed.begin(), needed.end()) - 2);
    // (With width one, less contention is never slower along a fixed order; a wider lane may
    // reorder.)
    if (std::all_of(graph.lanes.begin(), graph.lanes.end(),
                    [](const LaneSpec& lane) { return lane.width == 1; })) {
      REQUIRE(simulated >= static_cast<double>(makespan_ns(longest_path(graph))) - 2);
    }
    contended += !runs_without_contention(graph);

    // Predecessors end before successors start.
    for (std::uint32_t a = 0; a < graph.activities.size(); ++a) {
      for (std::uint32_t e = graph.successor_offsets[a]; e < graph.successor_offsets[a + 1]; ++e) {
        REQUIRE(times[graph.successors[e]].start_ns >= times[a].end_ns);
      }
    }

    // A resource that nobody uses changes nothing.
    ActivityGraph more = graph;
    more.resources.push_back({"unused", 1});
    REQUIRE(run_events(more) == times);

    // Twice the work and the latency takes twice the time (up to rounding of the report).
    for (Activity& activity : graph.activities) {
      activity.amount *= 2;
      activity.latency_ns *= 2;
    }
    REQUIRE(static_cast<double>(makespan_ns(run_events(graph))) ==
            Approx(2 * simulated).epsilon(0).margin(2));
  }
  CHECK(contended > 100);
}

TEST_CASE("Senseless activities and edges are refused") {
  ActivityGraph good = on_one_resource(1, 1);
  good.activities = {{0, 0, 1, 0}, {0, 0, 1, 0}};
  set_edges(good, {{0, 1}});
  CHECK_NOTHROW(run_events(good));
  const auto refused = [&](const auto& spoil) {
    ActivityGraph graph = good;
    spoil(graph);
    CHECK_THROWS_AS(run_events(graph), InputError);
  };
  refused([](ActivityGraph& graph) { graph.activities[0].lane = 1; });
  refused([](ActivityGraph& graph) { graph.activities[0].demand = 1; });
  refused([](ActivityGraph& graph) { graph.activities[0].amount = -1; });
  refused([](ActivityGraph& graph) { graph.activities[0].latency_ns = -1; });
  refused([](ActivityGraph& graph) { graph.lanes[0].width = 0; });
  refused([](ActivityGraph& graph) { graph.predecessor_counts = {0, 0}; });
  refused([](ActivityGraph& graph) { graph.successors = {2}; });
  refused([](ActivityGraph& graph) { graph.successor_offsets = {0, 2, 1}; });
}
