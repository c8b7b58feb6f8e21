// Runs the schedules of several ranks together with names instead of numbers, each rank with memory
// of its own, and finds the first task that does not read what it must.
#pragma once

#include <span>
#include <string>

#include "policies/schedule/schedule.hpp"
#include "policies/workload/ranks.hpp"

namespace spillway::test {

// How a plan cuts what is trained (Plan::shards), with the meshes that it leaves open filled in.
struct StatedShards {
  Mesh gradients;  // 1x1: sums of whole layers, reduced once they are complete
  Mesh optimizer_state;
  bool all_reduce = false;
};

// `schedules` are those of all ranks, in order of rank. Each must do what find_dataflow_error asks
// of one rank, with its own micro-batches. Of its collectives all ranks of the group must be at
// ones of the same kind, lane, unit, micro-batch and bytes; ranks that wait for each other are an
// error, and so are parts that are not, in order of their places in the group, the whole. A
// complete gradient must be the sum over all micro-batches of all ranks, added up in this order:
//
//   sums of whole layers   each rank adds its micro-batches as it visits them; then the ranks that
//                          share out optimizer state are added up, ascending; then those that hold
//                          the same part of it
//   all_reduce             the same, but all ranks are added up at once
//   sums in shards         of each micro-batch, the ranks of a mesh of gradients are added up; the
//                          results are added as they are made; then as above, over what is left
//
// so that all ranks that update the same elements do so with the same bits. Norms are sums over all
// parts of a gradient. After the last task every home of every rank holds the state after the last
// update. Empty, or the first violation in words.
std::string find_ranks_dataflow_error(std::span<const Schedule> schedules,
                                      const StatedShards& stated);

// In each group of ranks that share out optimizer state, homes of optimizer state cover every unit
// once: every element has one owner. Parameters that a rank has of a unit are one range, which
// holds what it updates. Empty, or what is wrong.
std::string find_ranks_home_error(std::span<const Schedule> schedules, const StatedShards& stated);

}  // namespace spillway::test
