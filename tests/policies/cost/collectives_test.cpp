// The time of collectives alone, by closed forms: alpha-beta rings and trees over p0 GPUs of a node
// by p1 nodes, and nccl-tests' bus bandwidths.
#include "policies/cost/collectives.hpp"

#include <catch2/catch.hpp>

#include <cmath>

#include "policies/cost/costs.hpp"
#include "policies/machine/rank_share.hpp"

using namespace spillway;

namespace {

constexpr double inside = 200e9, nic = 100e9;  // bytes/s: of a GPU to its node, of a node
constexpr double alpha = 3e-6, alpha_network = 14e-6;

// 16 nodes of eight GPUs, as one of the eight ranks of a node has them.
Machine::Cluster cluster() {
  Machine machine;
  machine.cluster.nodes = 16;
  machine.cluster.gpus = 8;
  machine.cluster.nvlink = inside;
  machine.cluster.nvlink_latency_ns = 3000;
  machine.cluster.nic = nic;
  machine.cluster.nic_latency_ns = 14000;
  return rank_share(machine, 8).cluster;
}

double seconds(const Machine::Cluster& cluster, TaskKind kind, const RankGroup& group,
               std::uint64_t bytes) {
  return collective_seconds(cluster, kind, group, bytes, inside, cluster.nic);
}

}  // namespace

TEST_CASE("A ring inside a node: (p - 1) (alpha + v / (p B)), twice that for an all-reduce") {
  for (const int p : {2, 4, 8}) {
    for (const std::uint64_t v : {1ull << 12, 1ull << 20, 1ull << 30}) {
      INFO(p << " GPUs, " << v << " bytes");
      const RankGroup group = shard_group({p, 1});
      const double once = (p - 1) * (alpha + static_cast<double>(v) / p / inside);
      CHECK(seconds(cluster(), TaskKind::all_gather, group, v) == Approx(once));
      CHECK(seconds(cluster(), TaskKind::reduce_scatter, group, v) == Approx(once));
      // One node's tree sends more, in no fewer steps.
      CHECK(seconds(cluster(), TaskKind::all_reduce, group, v) == Approx(2 * once));
    }
  }
}

TEST_CASE("A ring through nodes: each sends its bytes once, over all of its cards") {
  // v (p - 1)/p by each rank, a p0-th of it over a p0-th of the cards.
  const std::uint64_t v = 1ull << 30;
  for (const int p1 : {2, 4, 16}) {
    const double p = 8.0 * p1;
    CHECK(seconds(cluster(), TaskKind::all_gather, shard_group({8, p1}), v) ==
          Approx((p - 1) * alpha_network + static_cast<double>(v) * (p - 1) / p / nic));
  }
  // Eight groups of one GPU a node side by side: all bytes of a rank over an eighth of the cards.
  const double p = 16;
  CHECK(seconds(cluster(), TaskKind::all_gather, replica_group({8, 16}, {8, 1}), v) ==
        Approx((p - 1) * alpha_network + static_cast<double>(v) * (p - 1) / p / (nic / 8)));
}

TEST_CASE(
    "A broadcast is a chain of all bytes, and one of each part costs more steps than a gather") {
  const std::uint64_t v = 1ull << 30;
  for (const int p : {2, 4, 8}) {
    const RankGroup group = shard_group({p, 1});
    CHECK(seconds(cluster(), TaskKind::broadcast, group, v) ==
          Approx((p - 1) * alpha + static_cast<double>(v) / inside));
    const double of_parts =
        p * seconds(cluster(), TaskKind::broadcast, group, v / static_cast<std::uint64_t>(p));
    CHECK(of_parts == Approx(p * (p - 1) * alpha + static_cast<double>(v) / inside));
    CHECK(of_parts > seconds(cluster(), TaskKind::all_gather, group, v));
  }
  CHECK(seconds(cluster(), TaskKind::broadcast, shard_group({8, 4}), v) ==
        Approx(31 * alpha_network + static_cast<double>(v) / nic));
}

TEST_CASE("An all-reduce takes the faster of ring and tree") {
  // Tree: 2 v over the cards, 2 (log2 p1 alpha_network + (p0 - 1) alpha) of latency.
  const RankGroup all = shard_group({8, 16});
  const auto ring = [](double v) { return 2 * 127 * alpha_network + 2 * v * 127 / 128 / nic; };
  const auto tree = [](double v) { return 2 * (4 * alpha_network + 7 * alpha) + 2 * v / nic; };
  const std::uint64_t small = 1 << 20, large = 1ull << 34;
  CHECK(seconds(cluster(), TaskKind::all_reduce, all, small) == Approx(tree(1 << 20)));
  CHECK(seconds(cluster(), TaskKind::all_reduce, all, large) ==
        Approx(std::min(ring(std::pow(2, 34)), tree(std::pow(2, 34)))));
  REQUIRE(tree(1 << 20) < ring(1 << 20));
  const std::uint64_t huge = 1ull << 38;
  CHECK(seconds(cluster(), TaskKind::all_reduce, all, huge) == Approx(ring(std::pow(2, 38))));
}

TEST_CASE("Measured bus bandwidths, as nccl-tests count them, take the place of links") {
  // busbw = v (p - 1)/p / t of an all-gather or reduce-scatter, 2 v (p - 1)/p / t of an all-reduce.
  Machine::Cluster measured = cluster();
  measured.collectives = {{"all_gather", 8, 1, 1 << 20, 50e9},
                          {"all_gather", 8, 1, 1 << 24, 150e9},
                          {"reduce_scatter", 8, 1, 1 << 24, 120e9},
                          {"all_reduce", 8, 2, 1 << 24, 80e9}};
  const RankGroup node = shard_group({8, 1}), two = shard_group({8, 2});
  const auto bus = [&](TaskKind kind, const RankGroup& group, std::uint64_t v) {
    const double p = group.size(), rounds = kind == TaskKind::all_reduce ? 2 : 1;
    return rounds * static_cast<double>(v) * (p - 1) / p / seconds(measured, kind, group, v);
  };
  CHECK(bus(TaskKind::all_gather, node, 1 << 20) == Approx(50e9));
  CHECK(bus(TaskKind::all_gather, node, 1 << 24) == Approx(150e9));
  // Half way in the logarithm of the bytes; the nearest row outside.
  CHECK(bus(TaskKind::all_gather, node, 1 << 22) == Approx(100e9));
  CHECK(bus(TaskKind::all_gather, node, 1 << 10) == Approx(50e9));
  CHECK(bus(TaskKind::all_gather, node, 1 << 30) == Approx(150e9));
  CHECK(bus(TaskKind::reduce_scatter, node, 1 << 20) == Approx(120e9));
  CHECK(bus(TaskKind::all_reduce, two, 1 << 20) == Approx(80e9));
  // Another mesh has no row.
  CHECK(seconds(measured, TaskKind::all_reduce, node, 1 << 20) ==
        Approx(seconds(cluster(), TaskKind::all_reduce, node, 1 << 20)));
}

TEST_CASE("A spine that leaves share slows only groups that cross it") {
  Machine::Cluster leaves = cluster();
  leaves.leaf_nodes = 4;
  leaves.spine = 200e9;  // of a leaf with 400 GB/s of cards
  const std::uint64_t v = 1ull << 30;
  const auto ratio = [&](const RankGroup& group) {
    return seconds(leaves, TaskKind::all_gather, group, v) /
           seconds(cluster(), TaskKind::all_gather, group, v);
  };
  CHECK(ratio(shard_group({8, 1})) == Approx(1));
  CHECK(ratio(shard_group({8, 4})) == Approx(1));  // all of a leaf
  // One ring enters and leaves a leaf once: half of what a card pool does is no limit to it.
  CHECK(ratio(shard_group({8, 16})) == Approx(1));
  // Eight rings of every fourth node: no two of a ring under one leaf, all bytes cross.
  CHECK(ratio(replica_group({8, 16}, {8, 4})) == Approx(2).epsilon(0.01));
}

TEST_CASE("Groups that run side by side share the cards of their nodes") {
  // AMSP's gradient sync over 64 ranks and its broadcast over eight, of 13.4 GB: what its ablation
  // shows is 0.22 to 0.24 s of the one and 0.055 to 0.062 s of the other.
  const double v = 13.4e9;
  const auto bytes = static_cast<std::uint64_t>(v);
  CHECK(seconds(cluster(), TaskKind::all_reduce, shard_group({8, 8}), bytes) ==
        Approx(2 * v * 63 / 64 / nic).epsilon(0.02));
  CHECK(seconds(cluster(), TaskKind::all_gather, shard_group({8, 1}), bytes) ==
        Approx(v * 7 / 8 / inside).epsilon(0.01));
}

TEST_CASE("A collective of processes on cores keeps some of them busy, one of GPUs none") {
  Problem problem;
  problem.machine.cluster.gpus = 2;
  problem.machine.cluster.nvlink = 2e9;
  problem.machine.host.cores = 2;
  const std::vector<RankGroup> groups = {shard_group({2, 1})};
  Task task;
  task.kind = TaskKind::all_gather;
  task.lane = Lane::ranks_gather;
  task.bytes = 1 << 24;
  // Core-seconds of a second of the collective.
  const auto busy = [&](bool on_cores, double cores) {
    problem.machine.gpu.is_cpu = on_cores;
    problem.machine.cluster.cores = cores;
    const Costs costs(problem);
    const TaskCost cost = costs.of(task, groups);
    const Demand& demand = costs.collective_demand(cost.variant);
    CHECK(full_rate(costs.resources(), demand) == Approx(4e9));  // half of the bytes cross
    for (const Usage& usage : demand.usages) {
      if (costs.resources()[usage.resource].name == "cores") return usage.per_unit * 4e9;
    }
    return 0.0;
  };
  CHECK(busy(true, 0.75) == Approx(0.75));
  CHECK(busy(true, 0) == 0);
  CHECK(busy(false, 0.75) == 0);
}
