// Machine files of several GPUs: what is read is written, and what no cluster has is refused.
#include <catch2/catch.hpp>

#include <string>

#include "policies/machine/machine.hpp"
#include "policies/machine/rank_share.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/machine/machine_text.hpp"

using namespace spillway;

namespace {

// Behind small_machine, which has 12 lines: [cluster] is line 13.
const std::string cluster_text = R"([cluster]
nodes = 16
gpus = 8
nvlink = "200GB/s"
nvlink_latency = "3us"
switch_gpus = 2
switch_link = "25GB/s"
nic = "100GB/s"
nic_latency = "14us"
leaf_nodes = 4
spine = "300GB/s"
[[cluster.collectives]]
kind = "all_reduce"
gpus = 8
nodes = 2
bytes = "1MiB"
bandwidth = "80GB/s"
)";

auto with(const std::string& from, const std::string& to) {
  std::string text = small_machine + cluster_text;
  const std::size_t at = text.find(from, small_machine.size());
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  return [text] { parse_machine(text, "m.toml"); };
}

}  // namespace

TEST_CASE("A cluster is read, and written as it was read") {
  const Machine machine = parse_machine(small_machine + cluster_text, "m.toml");
  const Machine again = parse_machine(machine_to_toml(machine), "again.toml");
  for (const Machine& one : {machine, again}) {
    const Machine::Cluster& cluster = one.cluster;
    CHECK(cluster.nodes == 16);
    CHECK(cluster.gpus == 8);
    CHECK(cluster.count() == 128);
    CHECK(cluster.nvlink == 200e9);
    CHECK(cluster.nvlink_latency_ns == 3000);
    CHECK(cluster.switch_gpus == 2);
    CHECK(cluster.switch_link == 25e9);
    CHECK(cluster.nic == 100e9);
    CHECK(cluster.nic_latency_ns == 14000);
    CHECK(cluster.leaf_nodes == 4);
    CHECK(cluster.spine == 300e9);
    CHECK(cluster.sharing == 1);
    REQUIRE(cluster.collectives.size() == 1);
    CHECK(cluster.collectives[0].kind == "all_reduce");
    CHECK(cluster.collectives[0].gpus == 8);
    CHECK(cluster.collectives[0].nodes == 2);
    CHECK(cluster.collectives[0].bytes == 1 << 20);
    CHECK(cluster.collectives[0].bandwidth == 80e9);
  }
  CHECK(machine_to_toml(again) == machine_to_toml(machine));
  // A single GPU has nothing of it in its file.
  CHECK(machine_to_toml(parse_machine(small_machine, "m.toml")).find("cluster") ==
        std::string::npos);
}

TEST_CASE("The built-in clusters are those of their papers") {
  const Machine amsp = load_machine("a800-cluster"), roce = load_machine("a100-roce-cluster");
  CHECK(amsp.cluster.count() == 1024);
  CHECK(amsp.cluster.nvlink == 200e9);
  CHECK(amsp.cluster.nic == 100e9);
  CHECK(roce.cluster.nvlink == 300e9);
  CHECK(roce.cluster.nic == 50e9);
  for (const Machine& machine : {amsp, roce}) {
    for (const char* key : {"cluster.nodes", "cluster.gpus", "cluster.nvlink", "cluster.nic",
                            "cluster.nvlink_latency", "cluster.nic_latency", "gpu.flops"})
      CHECK_FALSE(machine.sources.at(key).empty());
  }
}

TEST_CASE("A rank has its share of a node") {
  Machine node = parse_machine(small_machine + cluster_text, "m.toml");
  const Machine rank = rank_share(node, 8);
  CHECK(rank.cluster.sharing == 8);
  CHECK(rank.host.memory == node.host.memory / 8);
  CHECK(rank.host.cores == Approx(node.host.cores / 8));
  CHECK(rank.host.bandwidth == Approx(node.host.bandwidth / 8));
  CHECK(rank.cluster.nic == Approx(100e9 / 8));
  // A GPU's own stays.
  CHECK(rank.cluster.nvlink == 200e9);
  CHECK(rank.gpu.memory == node.gpu.memory);
  CHECK(rank.pcie.h2d == node.pcie.h2d);
  const Machine again = whole_of(rank);
  CHECK(again.cluster.sharing == 1);
  CHECK(again.host.bandwidth == Approx(node.host.bandwidth));
  CHECK(again.ssd.write == Approx(node.ssd.write));
  CHECK(node.host.memory - again.host.memory < 8);
}

TEST_CASE("What no cluster has is refused where it stands") {
  check_error(with("nodes = 16", "nodes = 0"), "m.toml:14:9: cluster.nodes: 0 is outside 1 ..",
              "single server");
  check_error(with("gpus = 8", "gpus = 2000"), "m.toml:15:8: cluster.gpus: 2000 is outside 1 ..",
              "one node");
  check_error(with("nodes = 16", "nodes = 1000000"), "m.toml:14:9: cluster.nodes: 1000000 is", "");
  check_error(with("nic = \"100GB/s\"\n", ""), "m.toml:13:1: cluster.nic: 16 nodes do not reach",
              "100GB/s");
  check_error(with("leaf_nodes = 4\n", ""), "m.toml:22:9: cluster.spine: it is of a leaf switch",
              "cluster.leaf_nodes");
  check_error(with("switch_gpus = 2", "switch_gpus = 9"),
              "m.toml:18:15: cluster.switch_gpus: 9 is outside 0 .. 8", "its own way");
  check_error(with("switch_link = \"25GB/s\"\n", ""),
              "m.toml:18:15: cluster.switch_gpus: GPUs that", "cluster.switch_link");
  check_error(with("switch_gpus = 2\n", ""), "m.toml:18:15: cluster.switch_link: GPUs that",
              "cluster.switch_gpus");
  check_error(with("\"200GB/s\"", "\"200GB\""), "m.toml:16:10: cluster.nvlink: \"200GB\" is not",
              "");
  check_error(with("\"3us\"", "\"3\""), "m.toml:17:18: cluster.nvlink_latency: \"3\" is not", "");
  check_error(with("\"14us\"", "\"14000s\""), "m.toml:21:15: cluster.nic_latency: 1.4e+13 is", "");
  check_error(with("nvlink =", "nvlinks ="), "m.toml:16:1: unknown key cluster.nvlinks",
              "did you mean cluster.nvlink");
  check_error(with("kind = \"all_reduce\"", "kind = \"all_to_all\""), "m.toml:25:8: kind", "");
  check_error(with("gpus = 8\nnodes = 2", "gpus = 1\nnodes = 1"),
              "m.toml:26:8: gpus: a collective is between two GPUs", "");
  check_error(with("\"1MiB\"", "\"0B\""), "m.toml:28:9: bytes", "whole");
  check_error(with("nodes = 2\nbytes", "nodes = 32\nbytes"),
              "m.toml:13:1: cluster.collectives: a row is of 8 GPUs of 32 nodes", "raise");
  check_error(with("nodes = 2\n", "nodes = 2\nrank = 3\n"), "m.toml:28:1: unknown key rank", "");
}
