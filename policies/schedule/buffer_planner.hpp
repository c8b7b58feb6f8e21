// Offsets for all buffers of a program, tier by tier, in program order.
//
// Persistent buffers come first. A transient one is placed at the task that touches it first and
// given back after the last. Steps are alike: a buffer goes where the same one of the step before
// was, if it can, so that memory does not creep up from step to step. Where that leaves gaps, other
// layouts are tried.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/schedule/memory_planner.hpp"
#include "policies/schedule/task.hpp"

namespace spillway {

using TierBytes = std::array<std::uint64_t, tier_count>;  // by Tier

struct MemoryUse {
  TierBytes extent{};            // highest end of any buffer
  TierBytes live_peak{};         // most bytes live at one point of the program
  TierBytes first_extent{};      // of the first layout that was tried; others are no larger
  std::uint64_t operations = 0;  // steps it took to plan, see MemoryPlanner::operations
};

struct MemoryPlan {
  MemoryUse use;
  // By buffer: the block of its tier that it is in. The same block is the same range of bytes until
  // it is cut or merged: a hint for whoever looks for those that were there before.
  std::vector<MemoryPlanner::Block> blocks;
};

// Sets the offsets of all buffers; `accesses` are those of all tasks, `capacity` is what a layout
// should not exceed if there is one that does not.
MemoryPlan plan_memory(std::span<const Task> tasks, std::span<const Access> accesses,
                       std::vector<BufferInfo>& buffers, const TierBytes& capacity);

// The same live_peak, from the lifetimes alone: much faster, and gaps between buffers are not in
// it.
TierBytes live_peaks(std::size_t tasks, std::span<const BufferInfo> buffers);

}  // namespace spillway
