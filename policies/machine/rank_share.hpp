// What one rank has of a node whose host, drives and network it shares with others.
#pragma once

#include "policies/machine/machine.hpp"

namespace spillway {

// `node` as one of `ranks` ranks on it has it: an equal part of host memory, its bandwidth and
// cores, of the drives, their space and rates, and of the node's network cards. Ranks that do the
// same at the same time get equal parts of what they share by max-min fairness, so that one such
// rank, simulated by itself, takes as long as all of them together (docs/ranks.md). What is a GPU's
// own stays: the GPU, its links to the host and to its peers, the bandwidth of one core.
Machine rank_share(const Machine& node, std::int64_t ranks);
// The node of which `rank` is a share; bytes to the number of ranks.
Machine whole_of(const Machine& rank);

}  // namespace spillway
