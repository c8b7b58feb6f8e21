// Who last touched each byte of a tier's arena: the source of every dependency.
//
// For each range of bytes: the last writer and, per lane, the last reader since. A lane runs its
// tasks one after the other, so an edge from the last one of a lane covers all before it.
//
// The arena is divided into places, one for each buffer that is live, so that an access looks at
// the few ranges of its own buffer only. A buffer that takes the bytes of another one takes over
// what is known of them. An access of all the bytes of a place, however many runs they are in, is
// handled at once, and handed down to the runs only when a part of them is touched again: the cost
// of an access does not depend on how many pieces its buffer was filled in.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "policies/schedule/task.hpp"

namespace spillway {

// The latest task on each lane that a new task must wait for.
using Predecessors = std::array<TaskId, lane_count>;

// Keeps the later of the two.
inline void wait_for(Predecessors& predecessors, Lane lane, TaskId task) {
  TaskId& latest = predecessors[static_cast<std::size_t>(lane)];
  if (latest == none || (task != none && task > latest)) latest = task;
}

class AccessHistory {
 public:
  using Place = std::uint32_t;

  // Makes [begin, end) one place. Places that held some of these bytes lose them, and are not to be
  // used again. `hint`: a place that may be just this one, as where the same buffer of the step
  // before was; finds it faster.
  Place open(std::uint64_t begin, std::uint64_t end, Place hint = none);

  // Task `task` on `lane` reads / writes [begin, end), inside `place`: adds what it must wait for
  // to `predecessors`. Tasks come in ascending order.
  void read(Place place, std::uint64_t begin, std::uint64_t end, TaskId task, Lane lane,
            Predecessors& predecessors);
  void write(Place place, std::uint64_t begin, std::uint64_t end, TaskId task, Lane lane,
             Predecessors& predecessors);

  // Runs looked at so far: what the time of all calls is proportional to.
  std::uint64_t operations() const { return operations_; }

 private:
  struct Run {
    std::uint64_t begin = 0, end = 0;
    TaskId writer = none;
    Lane writer_lane = Lane::host_sync;
    Predecessors readers;
  };
  using Runs = std::vector<Run>;

  struct Bytes {
    std::uint64_t begin = 0, end = 0;
    Runs runs;  // ascending, disjoint; bytes never touched are absent
    // More than one run, all read together: they follow on one another, `writers` are theirs, and
    // `readers` have read all of them since, which the runs do not know yet.
    bool together = false;
    std::uint32_t last_part = 0;  // the run at which the last access of a part began
    Predecessors writers, readers;
  };

  static bool is_all(const Bytes& bytes, std::uint64_t begin, std::uint64_t end) {
    return bytes.runs.front().begin == begin && bytes.runs.back().end == end;
  }
  void read_part(Bytes& bytes, std::uint64_t begin, std::uint64_t end, TaskId task, Lane lane,
                 Predecessors& predecessors);
  void write_part(Bytes& bytes, const Run& written, Predecessors& predecessors);
  void gather(Bytes& bytes);
  void hand_down(Bytes& bytes);
  static Runs::iterator split(Runs& runs, std::uint64_t at);
  static Runs::iterator split_near(Bytes& bytes, std::uint64_t at);
  static Runs::iterator cut(Runs& runs, Runs::iterator run, std::uint64_t at);
  Place add(std::uint64_t begin, std::uint64_t end, Runs runs);
  void add_in_pieces(Bytes old);
  Place take(std::uint64_t begin, std::uint64_t end);

  static constexpr std::size_t few_runs = 8;
  std::vector<Bytes> places_;
  std::vector<Place> unused_;
  std::map<std::uint64_t, Place> by_begin_;
  std::uint64_t operations_ = 0;
};

}  // namespace spillway
