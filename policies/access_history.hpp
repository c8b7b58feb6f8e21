// Who last touched each byte of a tier's arena: the source of every dependency.
//
// For each run of bytes: the last writer and, per lane, the last reader since. A lane runs its
// tasks one after the other, so an edge from the last one of a lane covers all before it.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "policies/task.hpp"

namespace spillway {

// The latest task on each lane that a new task must wait for.
using Predecessors = std::array<TaskId, lane_count>;

class AccessHistory {
 public:
  // Task `task` on `lane` reads / writes [begin, end): adds what it must wait for to
  // `predecessors`.
  void read(std::uint64_t begin, std::uint64_t end, TaskId task, Lane lane,
            Predecessors& predecessors);
  void write(std::uint64_t begin, std::uint64_t end, TaskId task, Lane lane,
             Predecessors& predecessors);

 private:
  struct Run {
    std::uint64_t end = 0;
    TaskId writer = none;
    Lane writer_lane = Lane::host_sync;
    Predecessors readers;
  };
  using Runs = std::map<std::uint64_t, Run>;
  // Makes `at` a boundary between runs, if it is inside one.
  void split(std::uint64_t at);

  Runs runs_;  // by begin; disjoint; bytes never touched are absent
};

// Keeps the later of the two.
inline void wait_for(Predecessors& predecessors, Lane lane, TaskId task) {
  TaskId& latest = predecessors[static_cast<std::size_t>(lane)];
  if (latest == none || (task != none && task > latest)) latest = task;
}

}  // namespace spillway
