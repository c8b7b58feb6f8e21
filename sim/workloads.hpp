// Activity graphs of known shape, of any size, for speed tests and for tests against other
// programs. Each is defined so that any program can make it again: the generators are the C++
// standard's, the distributions those of libstdc++.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine.hpp"

namespace spillway::workloads {

using Edge = std::pair<std::uint32_t, std::uint32_t>;

// Fills the successor lists (ascending) and predecessor counts of `graph`.
void set_edges(ActivityGraph& graph, std::vector<Edge> edges);

// `count` lanes of width one.
std::vector<LaneSpec> lanes(std::size_t count, LaneOrder order = LaneOrder::index);

// `clients` send `flow_count` flows over links of bytes/s: client c sends flows c, c + clients, ...
// one after another over routes[c mod routes]; its sizes are U(2^20, 2^28) bytes (integers), from
// mt19937_64(1000 + c).
ActivityGraph flows(std::vector<Resource> links,
                    const std::vector<std::vector<std::uint32_t>>& routes, std::uint32_t clients,
                    std::uint32_t flow_count);

// One link of 25 GB/s; two, of which odd clients use the second; and five links (SSD read 7 and
// write 5, DRAM 60, to and from a GPU 25 GB/s each) with five routes, all over DRAM.
ActivityGraph one_link(std::uint32_t clients, std::uint32_t flow_count);
ActivityGraph two_links(std::uint32_t clients, std::uint32_t flow_count);
ActivityGraph five_routes(std::uint32_t clients, std::uint32_t flow_count);

// Tasks on four resources that serve in the order tasks become ready: task i, k = i mod 10, runs on
// r0 if k = 0, else on r(1 + (k-1)/3), for U(1e5, 1e7) ns from mt19937_64(42). It waits for i - k
// if k > 0, else for i - 10 and, from i = 20 on, for i - 11.
ActivityGraph four_resource_dag(std::uint32_t tasks);

}  // namespace spillway::workloads
