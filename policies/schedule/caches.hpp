// What a CPU's caches hold of a task's operands when it begins.
//
// A layer's kernels take 5 to 20 % longer on parameters, a gradient and kept activations that are
// in no cache. Which are, the schedule says: memory that the tasks before have touched, with at
// most cached_bytes moved since.
#pragma once

#include <cstdint>
#include <span>

#include "policies/schedule/task.hpp"

namespace spillway {

// Measured on a Xeon with 2 MB of its own a core and a share of 480 MB: layers that take turns on
// 15 to 22 MB in all are as fast as one layer on its own memory, on 44 MB as slow as on 150 MB, and
// on 30 MB half of that.
inline constexpr std::uint64_t cached_bytes = std::uint64_t{20} << 20;

inline constexpr int all_in_caches = 7;

// Sets Task::in_caches of the passes of layers: the share, in sevenths and rounded, of what they
// read and write of parameters, gradient and kept activations; a write counts twice, for its line
// is read before and written back later. Buffers have their offsets; tasks are taken in program
// order, and what a task touches in the order of its accesses.
void mark_cached_operands(std::span<Task> tasks, std::span<const Access> accesses,
                          std::span<const BufferInfo> buffers);

}  // namespace spillway
