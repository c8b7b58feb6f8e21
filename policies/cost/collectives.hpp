// What a collective moves over which links, and how long its steps take.
//
// v bytes of the whole, p = p0 x p1 ranks: p0 GPUs of a node by p1 nodes. Each is the faster of its
// algorithms, as in NCCL:
//
//   all_gather, reduce_scatter   ring: v (p - 1)/p bytes by each rank, p - 1 steps
//   all_reduce                   ring: a reduce_scatter and an all_gather;
//                                tree: 2 v bytes, 2 (log2 p1 + p0 - 1) steps
//   norms_reduce                 as all_reduce
//   broadcast                    a chain: v bytes by each rank but the last, p - 1 steps
//
// A ring through p0 GPUs of a node leaves and enters the node once, so that of the bytes of a rank
// a p0-th crosses the network: the groups of a node that run side by side share its cards. Bus
// bandwidth is counted as nccl-tests count it: v (p - 1)/p over the time of an all_gather, twice
// that of an all_reduce, v of a broadcast.
#pragma once

#include <cstdint>

#include "policies/machine/machine.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/ranks.hpp"

namespace spillway {

// By one rank, in bytes per byte of the whole.
struct CollectiveTraffic {
  double inside = 0;   // between GPUs of a node
  double network = 0;  // over its share of the node's network cards
  double spine = 0;    // and of the leaf switch's links to others
  double steps_ns = 0;
  double bandwidth = 0;  // bytes of the whole per second at most, as measured; 0: not measured
};

// Of a rank's share of a node (rank_share.hpp). `inside`, `network`: bytes/s of a rank, by which
// the faster algorithm is chosen.
CollectiveTraffic collective_traffic(const Machine::Cluster& cluster, TaskKind kind,
                                     const RankGroup& group, std::uint64_t bytes, double inside,
                                     double network);

// Seconds of such a collective alone.
double collective_seconds(const Machine::Cluster& cluster, TaskKind kind, const RankGroup& group,
                          std::uint64_t bytes, double inside, double network);

// Of a leaf switch, the share of a rank below it; 0: not limited.
double spine_share(const Machine::Cluster& cluster);

}  // namespace spillway
