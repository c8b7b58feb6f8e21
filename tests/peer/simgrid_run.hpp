// Runs an activity graph through SimGrid.
#pragma once

#include <vector>

#include "tests/peer/peer_graph.hpp"

namespace spillway::test {

struct PeerTimes {
  double start_s = -1, end_s = -1;  // -1: it never came to that
};

// The times by activity. SimGrid keeps its state in globals, so it runs in a child process. Throws
// std::runtime_error when that fails.
std::vector<PeerTimes> run_in_simgrid(const PeerGraph& peer);

}  // namespace spillway::test
