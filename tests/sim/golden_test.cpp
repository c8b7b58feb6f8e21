// Workloads whose makespans were obtained twice independently: with SimGrid 3.32 (CM02 network
// model, TCP corrections and cross traffic off) and with plain water-filling and list-scheduling
// programs. All agree to the six decimals given here.
#include <catch2/catch.hpp>

#include "tests/sim/graphs.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// Equal to six decimals.
void check_makespan(const ActivityGraph& graph, double golden) {
  CHECK(makespan(graph) == Approx(golden).epsilon(0).margin(0.5e-6 + 1e-9));
}

}  // namespace

TEST_CASE("Flows over one link of 25 GB/s take as long as in SimGrid") {
  check_makespan(one_link(1, 1000), 5.335172);
  check_makespan(one_link(8, 1000), 5.424518);
  check_makespan(one_link(64, 1000), 5.529151);
  check_makespan(one_link(1, 100000), 539.512948);
  check_makespan(one_link(8, 100000), 539.123022);
  check_makespan(one_link(64, 100000), 539.780278);
}

TEST_CASE("Flows both ways over two links take as long as in SimGrid") {
  check_makespan(two_links(8, 1000), 2.714562);
  check_makespan(two_links(64, 100000), 270.368024);
}

TEST_CASE("Flows over five routes that share links take as long as in SimGrid") {
  check_makespan(five_routes(5, 1000), 5.542519);
  check_makespan(five_routes(20, 1000), 5.334300);
  check_makespan(five_routes(64, 1000), 5.483608);
  check_makespan(five_routes(20, 10000), 54.045191);
  check_makespan(five_routes(64, 100000), 545.887375);
}

TEST_CASE("A task graph on four first-ready-first-served resources takes as long as in SimGrid") {
  check_makespan(four_resource_dag(1000), 1.530918);
  check_makespan(four_resource_dag(10000), 15.541770);
  check_makespan(four_resource_dag(100000), 152.488812);
}

TEST_CASE("Reads and writes share a disk as in SimGrid's disk model") {
  // r <= R = 7, w <= W = 5, r + w <= RW GB/s; 70 GB read and 50 GB write start together.
  // RW = 7: each runs at 3.5 until the write ends at 50/3.5; the read's last 20 GB run at 7.
  // RW = 8: each runs at 4 until the write ends at 50/4; the read's last 20 GB run at 7.
  const auto disk = [](double read_write) {
    ActivityGraph graph;
    graph.resources = {{"read", 7e9}, {"write", 5e9}, {"total", read_write}};
    graph.demands = {Demand().uses(0, 1).uses(2, 1), Demand().uses(1, 1).uses(2, 1)};
    graph.lanes = lanes(2);
    graph.activities = {{0, 0, 70e9, 0}, {1, 1, 50e9, 0}};
    return run_events(graph);
  };
  CHECK(disk(7e9)[1].end_ns == 14285714286);
  CHECK(disk(7e9)[0].end_ns == 17142857143);
  CHECK(disk(8e9)[1].end_ns == 12500000000);
  CHECK(disk(8e9)[0].end_ns == 15357142857);
}
