// Every activity starts and ends when SimGrid says: to 1e-6 of the time, or 10 ns at the very
// start.
#include <catch2/catch.hpp>

#include "tests/peer/simgrid_run.hpp"
#include "tests/sim/graphs.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

void check_time(double seconds, std::int64_t ns) {
  REQUIRE(static_cast<double>(ns) * 1e-9 == Approx(seconds).epsilon(1e-6).margin(1e-8));
}

void compare(const PeerGraph& peer) {
  const std::vector<PeerTimes> theirs = run_in_simgrid(peer);
  const std::vector<ActivityTimes> ours = run_events(peer.graph);
  for (std::size_t a = 0; a < ours.size(); ++a) {
    INFO("activity " << a);
    check_time(theirs[a].start_s, ours[a].start_ns);
    check_time(theirs[a].end_s, ours[a].end_ns);
  }
}

void compare_random(std::uint64_t seed, int rounds, const PeerMix& mix) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    INFO("seed " << seed << ", round " << round);
    compare(random_peer_graph(random, mix));
  }
}

PeerGraph one_disk(double read, double write, double total) {
  PeerGraph peer;
  peer.graph.resources = {{"read", read}, {"write", write}, {"total", total}};
  peer.graph.demands = {Demand().uses(0, 1).uses(2, 1), Demand().uses(1, 1).uses(2, 1)};
  peer.graph.lanes = lanes(2);
  peer.graph.activities = {{0, 0, 70e9, 0}, {1, 1, 50e9, 0}};
  peer.demands = {{PeerKind::read, 0}, {PeerKind::write, 0}};
  peer.disks = {{0, 1, 2}};
  return peer;
}

}  // namespace

TEST_CASE("Random flows over routes of up to twelve links, some with a rate cap") {
  compare_random(101, 80, {.transfers = true});
}

TEST_CASE("Random computations of different priority on hosts with several cores") {
  compare_random(102, 60, {.computations = true, .edges = true, .latencies = true});
}

TEST_CASE("Random reads and writes that share disks") {
  compare_random(103, 60, {.disks = true, .edges = true, .latencies = true});
}

TEST_CASE("Random task graphs of transfers with latencies, lanes in index order") {
  compare_random(104, 60, {.transfers = true, .edges = true, .latencies = true});
}

TEST_CASE("Random task graphs of everything, lanes in index order and first ready first served") {
  compare_random(105, 100,
                 {.transfers = true,
                  .computations = true,
                  .disks = true,
                  .edges = true,
                  .latencies = true,
                  .ready_order = true});
}

TEST_CASE("The golden flows: one link, two links, five routes") {
  compare(transfers(one_link(8, 1000)));
  compare(transfers(one_link(64, 1000)));
  compare(transfers(two_links(8, 1000)));
  compare(transfers(five_routes(20, 1000)));
  compare(transfers(five_routes(64, 1000)));
}

TEST_CASE("The capped law of a disk is SimGrid's: 70 GB read and 50 GB written together") {
  // r <= 7, w <= 5, r + w <= RW GB/s. RW = 7: both at 3.5, writing ends at 50/3.5 = 14.2857 s, the
  // read's last 20 GB run at 7: 17.1429 s. RW = 8: 12.5 s and 15.3571 s.
  for (const auto& [total, written, read] :
       {std::tuple{7e9, 14.2857142857, 17.1428571429}, std::tuple{8e9, 12.5, 15.3571428571}}) {
    const PeerGraph disk = one_disk(7e9, 5e9, total);
    compare(disk);
    const std::vector<PeerTimes> theirs = run_in_simgrid(disk);
    CHECK(theirs[1].end_s == Approx(written).epsilon(1e-9));
    CHECK(theirs[0].end_s == Approx(read).epsilon(1e-9));
  }
  compare(one_disk(7e9, 5e9, 20e9));  // no cap: neither slows the other
}
