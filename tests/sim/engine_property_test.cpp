// What holds for every activity graph, on random ones.
#include <catch2/catch.hpp>

#include "tests/sim/brute_force.hpp"
#include "tests/sim/graphs.hpp"
#include "tests/sim/random_graphs.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// Calls `check` with `rounds` random graphs: with contention and without, lanes of both orders.
template <class Check>
void for_random_graphs(std::uint64_t seed, int rounds, Check check) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    INFO("seed " << seed << ", round " << round);
    const GraphShape shape = {.contention = round % 4 != 0, .ready_lanes = round % 2 != 0};
    check(random_activity_graph(random, shape), random);
  }
}

// The least time the graph could take: any resource's, any lane's, any chain's.
double roofline_ns(const ActivityGraph& graph) {
  const FairSharing sharing(graph.resources, graph.demands);
  std::vector<double> resources(graph.resources.size(), 0), lanes(graph.lanes.size(), 0);
  std::vector<double> chain(graph.activities.size(), 0);  // the longest that ends with it
  double least = 0;
  for (std::uint32_t a = 0; a < graph.activities.size(); ++a) {
    const Activity& activity = graph.activities[a];
    const double alone = uncontended_ns(activity, sharing);
    lanes[activity.lane] += alone / graph.lanes[activity.lane].width;
    for (const Usage& usage : graph.demands[activity.demand].usages) {
      resources[usage.resource] +=
          activity.amount * usage.per_unit / graph.resources[usage.resource].capacity * 1e9;
    }
    chain[a] += alone;
    least = std::max(least, chain[a]);
    for (std::uint32_t e = graph.successor_offsets[a]; e < graph.successor_offsets[a + 1]; ++e) {
      double& next = chain[graph.successors[e]];
      next = std::max(next, chain[a]);
    }
  }
  for (const double ns : resources) least = std::max(least, ns);
  for (const double ns : lanes) least = std::max(least, ns);
  return least;
}

double serial_ns(const ActivityGraph& graph) {
  const FairSharing sharing(graph.resources, graph.demands);
  double sum = 0;
  for (const Activity& activity : graph.activities) sum += uncontended_ns(activity, sharing);
  return sum;
}

}  // namespace

TEST_CASE("The makespan lies between the roofline and everything one after the other") {
  // Above the serial sum it cannot get: where a resource r is saturated, the running activities'
  // rates, each divided by the rate it has alone, add up to at least
  // sum(usage x rate) / capacity = 1, and where none is, each of them is 1.
  for_random_graphs(1, 400, [](const ActivityGraph& graph, std::mt19937_64&) {
    const double makespan = static_cast<double>(makespan_ns(run_events(graph)));
    REQUIRE(makespan >= roofline_ns(graph) * (1 - 1e-12) - 1);
    REQUIRE(makespan <= serial_ns(graph) * (1 + 1e-12) + 1);
  });
}

TEST_CASE("The same graph gives the same times, byte for byte") {
  for_random_graphs(2, 200, [](const ActivityGraph& graph, std::mt19937_64&) {
    REQUIRE(run_events(graph) == run_events(ActivityGraph(graph)));
  });
}

TEST_CASE("Twice the work and twice the latency take twice as long, every activity") {
  // Doubling is exact in binary, so only the rounding to nanoseconds differs: 2 round(t) and
  // round(2 t) are at most 1 apart.
  for_random_graphs(3, 400, [](ActivityGraph graph, std::mt19937_64&) {
    const auto once = run_events(graph);
    for (Activity& activity : graph.activities) {
      activity.amount *= 2;
      activity.latency_ns *= 2;
    }
    const auto twice = run_events(graph);
    for (std::size_t a = 0; a < once.size(); ++a) {
      REQUIRE(std::abs(twice[a].start_ns - 2 * once[a].start_ns) <= 1);
      REQUIRE(std::abs(twice[a].end_ns - 2 * once[a].end_ns) <= 1);
    }
  });
}

TEST_CASE("Half of every capacity and rate cap takes twice as long where nothing has a latency") {
  for_random_graphs(4, 200, [](ActivityGraph graph, std::mt19937_64&) {
    for (Activity& activity : graph.activities) activity.latency_ns = 0;
    const auto fast = run_events(graph);
    for (Resource& resource : graph.resources) resource.capacity /= 2;
    for (Demand& demand : graph.demands) demand.rate_cap /= 2;
    const auto slow = run_events(graph);
    for (std::size_t a = 0; a < fast.size(); ++a)
      REQUIRE(std::abs(slow[a].end_ns - 2 * fast[a].end_ns) <= 1);
  });
}

TEST_CASE("Other indices, the same order within each lane: the same times, byte for byte") {
  for_random_graphs(5, 400, [](const ActivityGraph& graph, std::mt19937_64& random) {
    const auto times = run_events(graph);
    const Relabelled other = relabel(graph, random);
    const auto relabelled = run_events(other.graph);
    for (std::size_t a = 0; a < times.size(); ++a)
      REQUIRE(relabelled[other.new_index[a]] == times[a]);
  });
}

TEST_CASE("Resources, demands and lanes that nobody uses change nothing") {
  for_random_graphs(6, 200, [](ActivityGraph graph, std::mt19937_64&) {
    const auto times = run_events(graph);
    graph.resources.push_back({"unused", 1});
    graph.demands.push_back(
        Demand().uses(0, 1).uses(static_cast<std::uint32_t>(graph.resources.size() - 1), 2));
    graph.lanes.push_back({"unused", LaneOrder::ready, 3});
    REQUIRE(run_events(graph) == times);
  });
}

TEST_CASE("Two graphs side by side run as each alone") {
  for_random_graphs(7, 200, [](const ActivityGraph& left, std::mt19937_64& random) {
    const ActivityGraph right = random_activity_graph(random, {});
    auto expected = run_events(left);
    const auto more = run_events(right);
    expected.insert(expected.end(), more.begin(), more.end());
    REQUIRE(run_events(side_by_side(left, right)) == expected);
  });
}

TEST_CASE("Without contention the events agree with the longest path, byte for byte") {
  const std::uint64_t seed = 8;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    INFO("seed " << seed << ", round " << round);
    const ActivityGraph graph = random_activity_graph(random, {.contention = false});
    REQUIRE(runs_without_contention(graph));
    REQUIRE(run_events(graph) == longest_path(graph));
    REQUIRE(simulate_activities(graph) == longest_path(graph));
  }
}

TEST_CASE("simulate_activities gives what the events give, whichever way it takes") {
  for_random_graphs(9, 200, [](const ActivityGraph& graph, std::mt19937_64&) {
    REQUIRE(simulate_activities(graph) == run_events(graph));
  });
}

TEST_CASE("A run that ends early has the same times up to there, and no more than it has to") {
  std::size_t cut = 0;
  for_random_graphs(16, 200, [&](const ActivityGraph& graph, std::mt19937_64& random) {
    if (graph.activities.empty()) return;
    const auto count = static_cast<std::uint32_t>(graph.activities.size());
    const StopAt stop = {static_cast<std::uint32_t>(random() % count),
                         static_cast<std::uint32_t>(random() % (count / 2 + 1))};
    const std::vector<ActivityTimes> whole = simulate_activities(graph);
    const std::vector<ActivityTimes> early = simulate_activities(graph, stop);
    REQUIRE(early.size() == whole.size());
    const std::int64_t watched_ns = whole[stop.watched].start_ns;
    CHECK(early[stop.watched].start_ns == watched_ns);
    for (std::uint32_t a = 0; a < count; ++a) {
      const bool ran = whole[a].start_ns < watched_ns && whole[a].end_ns > watched_ns;
      if (a < stop.before || ran) CHECK(early[a] == whole[a]);
      CHECK((early[a].start_ns == whole[a].start_ns || early[a].start_ns == not_reached_ns));
      CHECK((early[a].end_ns == whole[a].end_ns || early[a].end_ns == not_reached_ns));
      if (early[a].start_ns == not_reached_ns) ++cut;
    }
  });
  CHECK(cut > 1000);
}

TEST_CASE("Every activity starts and ends when following the rules plainly says so") {
  // The oracle solves all rates anew at every event, activity by activity, in extended precision.
  for_random_graphs(10, 300, [](const ActivityGraph& graph, std::mt19937_64&) {
    const auto times = run_events(graph);
    const auto plain = brute_force(graph);
    for (std::size_t a = 0; a < times.size(); ++a) {
      INFO("activity " << a);
      const auto off = [](std::int64_t ns, long double seconds) {
        return std::abs(static_cast<double>(static_cast<long double>(ns) - seconds * 1e9L));
      };
      REQUIRE(off(times[a].start_ns, plain[a].start) <= 0.51);
      REQUIRE(off(times[a].end_ns, plain[a].end) <= 0.51);
    }
  });
}
