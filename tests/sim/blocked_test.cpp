// What is said when nothing can go on: what is at the root of it, and what each waits for.
#include <catch2/catch.hpp>

#include "tests/sim/graphs.hpp"

using namespace spillway;
using namespace spillway::test;
using Catch::Matchers::Contains;

namespace {

// Lanes of width one, resource 0 of capacity 1 and resource 1 of none.
ActivityGraph two_resources(std::size_t lane_count) {
  ActivityGraph graph;
  graph.resources = {{"dram", 1}, {"ssd.read", 0}};
  graph.demands = {Demand().uses(0, 1), Demand().uses(0, 1).uses(1, 1)};
  graph.lanes = lanes(lane_count);
  return graph;
}

struct Report {
  std::string message, hint;
  std::vector<std::uint32_t> blocked;
};

Report report_of(const ActivityGraph& graph) {
  CHECK_FALSE(runs_without_contention(graph));
  try {
    simulate_activities(graph);
  } catch (const BlockedError& error) {
    return {error.what(), error.hint(), error.blocked()};
  }
  return {};
}

}  // namespace

TEST_CASE("An activity whose resource has no capacity is named before those that wait for it") {
  ActivityGraph graph = two_resources(3);
  graph.activities = {{0, 0, 1, 0}, {1, 0, 1, 0}, {2, 1, 1, 0}};
  set_edges(graph, {{2, 0}, {0, 1}});
  graph.describe = [](std::uint32_t a) { return "task " + std::to_string(a); };
  const Report report = report_of(graph);
  CHECK(report.message ==
        "nothing can go on at 0.000000 s, with 3 of 3 activities blocked: "
        "task 2 waits for capacity of ssd.read; task 0 waits for task 2; task 1 waits for task 0");
  CHECK_THAT(report.hint, Contains("capacity"));
  CHECK(report.blocked == std::vector<std::uint32_t>{0, 1, 2});
}

TEST_CASE("A rate cap of zero is a wait for a rate above zero") {
  ActivityGraph graph = two_resources(1);
  graph.demands[0].rate_cap = 0;
  graph.activities = {{0, 0, 1, 0}};
  CHECK_THAT(report_of(graph).message, Contains("activity 0 waits for a rate above zero"));
}

TEST_CASE("A circle is named in order, before what waits for it") {
  // 4 -> 5 -> 6 -> 4; 0 waits for 5; 1 and 2 do not wait.
  ActivityGraph graph = two_resources(7);
  for (std::uint32_t a = 0; a < 7; ++a) graph.activities.push_back({a, 0, 0.5, 0});
  set_edges(graph, {{4, 5}, {5, 6}, {6, 4}, {5, 0}, {3, 4}});
  const Report report = report_of(graph);
  CHECK_THAT(report.message, Contains("4 of 7 activities blocked: 3 wait for each other in a "
                                      "circle: activity 5 waits for activity 4; activity 4 waits "
                                      "for activity 6; activity 6 waits for activity 5; activity "
                                      "0 waits for activity 5"));
  CHECK_THAT(report.hint, Contains("let no activity wait"));
  CHECK(report.blocked == std::vector<std::uint32_t>{0, 4, 5, 6});
}

TEST_CASE("A circle through the order of two lanes is named as such") {
  // Lane 0 serves 0 then 2, lane 1 serves 1 then 3; 0 needs 3 and 1 needs 2.
  ActivityGraph graph = two_resources(2);
  graph.activities = {{0, 0, 1, 0}, {1, 0, 1, 0}, {0, 0, 1, 0}, {1, 0, 1, 0}};
  set_edges(graph, {{3, 0}, {2, 1}});
  const std::string message = report_of(graph).message;
  CHECK_THAT(message, Contains("4 wait for each other in a circle: "));
  CHECK_THAT(message, Contains("activity 0 waits for activity 3"));
  CHECK_THAT(message, Contains("activity 3 waits for its turn on lane lane 1, behind activity 1"));
  CHECK_THAT(message, Contains("activity 1 waits for activity 2"));
  CHECK_THAT(message, Contains("activity 2 waits for its turn on lane lane 0, behind activity 0"));
}

TEST_CASE("An activity that waits for itself is a circle of one") {
  ActivityGraph graph = two_resources(1);
  graph.activities = {{0, 0, 1, 0}};
  set_edges(graph, {{0, 0}});
  CHECK_THAT(report_of(graph).message, Contains("1 of 1 activities blocked: it waits for itself: "
                                                "activity 0 waits for activity 0"));
}

TEST_CASE("A place on a lane that serves who is ready is held by one that starves") {
  ActivityGraph graph = two_resources(1);
  graph.lanes[0].order = LaneOrder::ready;
  graph.activities = {{0, 1, 1, 0}, {0, 0, 1, 0}};
  CHECK_THAT(report_of(graph).message,
             Contains("activity 1 waits for a place on lane lane 0, held by activity 0"));
}

TEST_CASE("An activity that starves and a circle elsewhere are both named") {
  ActivityGraph graph = two_resources(4);
  graph.activities = {{0, 0, 1, 0}, {1, 0, 1, 0}, {2, 1, 1, 0}, {3, 0, 1, 0}};
  set_edges(graph, {{0, 1}, {1, 0}, {2, 3}});
  const Report report = report_of(graph);
  CHECK_THAT(report.message, Contains("activity 2 waits for capacity of ssd.read; 2 wait for each "
                                      "other in a circle: activity 0 waits for activity 1; "
                                      "activity 1 waits for activity 0"));
  CHECK_THAT(report.hint, Contains("capacity"));
  CHECK_THAT(report.hint, Contains("let no activity wait"));
}

TEST_CASE("What others of the component take leaves what is not starved running") {
  // Demand 1 gets nothing for want of ssd.read; demand 0 has all of dram and ends after 2 s.
  ActivityGraph graph = two_resources(2);
  graph.activities = {{0, 0, 2, 0}, {1, 1, 1, 0}};
  const Report report = report_of(graph);
  CHECK_THAT(report.message, Contains("at 2.000000 s, with 1 of 2 activities blocked"));
}

TEST_CASE("Of thousands that are blocked eight are named, the others counted by lane") {
  ActivityGraph graph = two_resources(3);
  graph.activities.push_back({2, 1, 1, 0});
  std::vector<Edge> edges;
  for (std::uint32_t a = 1; a <= 9000; ++a) {
    graph.activities.push_back({a % 3 == 0 ? 1U : 0U, 0, 1, 0});
    edges.emplace_back(a - 1, a);
  }
  set_edges(graph, std::move(edges));
  const Report report = report_of(graph);
  CHECK_THAT(report.message, Contains("9001 of 9001 activities blocked: activity 0 waits for "
                                      "capacity of ssd.read; activity 1 waits for activity 0"));
  CHECK_THAT(report.message, Contains("activity 7 waits for activity 6; and 8993 more: 5995 on "
                                      "lane lane 0, 2998 on lane lane 1"));
  CHECK(report.message.size() < 600);
  CHECK(report.blocked.size() == 9001);
}

TEST_CASE("A circle of thousands is cut short, and its length said") {
  ActivityGraph graph = two_resources(1);
  graph.lanes[0].order = LaneOrder::ready;
  std::vector<Edge> edges;
  for (std::uint32_t a = 0; a < 5000; ++a) {
    graph.activities.push_back({0, 0, 1, 0});
    edges.emplace_back(a, (a + 1) % 5000);
  }
  set_edges(graph, std::move(edges));
  const Report report = report_of(graph);
  CHECK_THAT(report.message, Contains("5000 wait for each other in a circle: "));
  CHECK_THAT(report.message, Contains("and 4992 more: 4992 on lane lane 0"));
  CHECK(report.message.size() < 700);
}

TEST_CASE("A time that nanoseconds cannot hold is refused") {
  // 1e11 s, over three thousand years.
  ActivityGraph graph = two_resources(2);
  graph.activities = {{0, 0, 1e11, 0}};
  CHECK_THROWS_WITH(run_events(graph), Contains("292 years"));
  CHECK_THROWS_WITH(simulate_activities(graph), Contains("292 years"));
}
