// All ranks simulated together: what each takes where they share the host, the drives and the
// network of their nodes, and meet in collectives.
//
// One rank simulated by itself on its share of a node (policies/machine/rank_share.hpp) is exact
// where all do the same at the same time; this is what it is exact to. Here nothing is shared out
// beforehand:
//
//   a rank's own   GPU, its links to the host and to its peers
//   a switch's     its link to the host
//   a node's       cores, host memory, the way of I/O, drives, network cards: as much of them as
//                  all of its ranks have. One rank alone may take all of it, also of the
//                  optimizer's threads and of the drives
//   a leaf's       the links of its switch to others
//
// A collective holds its lane from when a rank arrives; its work begins on all of its group when
// the last one has arrived, and ends on all when the last one has ended. The stages of a pipeline
// are such ranks, too, and a message is such a collective of two.
#pragma once

#include <span>
#include <vector>

#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// By rank. `schedules` are those of all ranks of a problem, in order of rank. Throws InputError
// where a rate is missing, and where ranks wait for each other for ever.
// `machine`: with its rates in place of those of the schedules' own machines, where it is not null.
std::vector<SimulationResult> simulate_ranks(std::span<const Schedule> schedules,
                                             const Machine* machine = nullptr);

}  // namespace spillway
