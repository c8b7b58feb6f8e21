// What a copy or an I/O task moves.
#pragma once

#include <span>

#include "policies/schedule/task.hpp"

namespace spillway {

// The access that names what the task moves, of those of a task that copies, reads or writes: its
// source. What is written to the SSD may come from a host buffer that tensors of several kinds
// share, so that its destination says what it is.
inline const Access& moved_by(const Task& task, std::span<const Access> accesses) {
  if (task.kind == TaskKind::write) {
    for (const Access& one : accesses) {
      if (one.role == Role::destination) return one;
    }
  }
  return accesses[0];
}

}  // namespace spillway
