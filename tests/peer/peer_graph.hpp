// An activity graph that SimGrid can run too: every resource is a link, the cores of a host, or one
// of the three limits of a disk; every demand is a transfer, a computation, a read or a write.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "sim/engine.hpp"

namespace spillway::test {

enum class PeerKind : std::uint8_t { transfer, compute, read, write };

struct PeerDemand {
  PeerKind kind = PeerKind::transfer;
  std::uint32_t device = 0;  // of a computation: index in hosts; of a read or write: in disks
};

struct PeerHost {
  std::uint32_t resource = 0;  // of capacity cores x speed
  int cores = 1;
  double speed = 0;  // of one core: the most one computation gets
};

// reads <= read, writes <= write, reads + writes <= total
struct PeerDisk {
  std::uint32_t read = 0, write = 0, total = 0;  // resources
};

struct PeerGraph {
  ActivityGraph graph;
  std::vector<PeerDemand> demands;  // by demand of the graph; a transfer crosses all that it uses
  std::vector<PeerHost> hosts;
  std::vector<PeerDisk> disks;
};

// A graph whose demands are all transfers: each use takes one unit per unit of work, all weights
// are one.
inline PeerGraph transfers(ActivityGraph graph) {
  PeerGraph peer;
  peer.graph = std::move(graph);
  peer.demands.resize(peer.graph.demands.size());
  return peer;
}

// What a random graph is made of.
struct PeerMix {
  bool transfers = false, computations = false, disks = false;
  bool edges = false;  // else lanes alone make an order
  bool latencies = false;
  bool ready_order = false;  // some lanes serve in the order things become ready
};
PeerGraph random_peer_graph(std::mt19937_64& random, const PeerMix& mix);

}  // namespace spillway::test
