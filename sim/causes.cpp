#include "sim/causes.hpp"

#include <array>

#include "base/errors.hpp"

namespace spillway {

namespace {

bool overlap(const Access& a, const Access& b) {
  return a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

}  // namespace

const char* to_string(Wait wait) {
  switch (wait) {
    case Wait::data:
      return "data";
    case Wait::memory:
      return "memory";
    case Wait::barrier:
      return "barrier";
    case Wait::turn:
      return "turn";
    case Wait::end:
      return "end";
  }
  SPILLWAY_ASSERT(false);
}

const char* in_words(Wait wait) {
  switch (wait) {
    case Wait::data:
      return "";
    case Wait::memory:
      return "so that memory is free";
    case Wait::barrier:
      return "at a barrier";
    case Wait::turn:
      return "ahead on its lane";
    case Wait::end:
      return "at the end of the run";
  }
  SPILLWAY_ASSERT(false);
}

Causes::Causes(const Schedule& schedule, std::span<const SimulatedTask> times, std::int64_t from_ns)
    : schedule_(schedule), times_(times), cause_(times.size(), none) {
  const std::span<const Task> tasks = schedule.tasks();
  SPILLWAY_ASSERT(times.size() == tasks.size());
  std::array<TaskId, lane_count> before;
  before.fill(none);
  for (TaskId task = 0; task < tasks.size(); ++task) {
    // All its predecessors have lower ids, so they have been looked at.
    TaskId& on_lane = before[static_cast<std::size_t>(tasks[task].lane)];
    TaskId& cause = cause_[task];
    if (on_lane != none && (cause == none || times[on_lane].end_ns >= times[cause].end_ns))
      cause = on_lane;
    on_lane = task;
    // What ends before from_ns holds up nothing that starts after it.
    const std::int64_t end = times[task].end_ns;
    if (end < from_ns) continue;
    for (const TaskId successor : schedule.successors(task)) {
      TaskId& latest = cause_[successor];
      if (latest == none || end > times[latest].end_ns) latest = task;
    }
  }
}

Wait wait_between(const Schedule& schedule, TaskId first, TaskId second) {
  const std::span<const Task> tasks = schedule.tasks();
  const Task& before = tasks[first];
  const Task& after = tasks[second];
  if (before.kind == TaskKind::barrier || after.kind == TaskKind::barrier) return Wait::barrier;
  if (before.lane == after.lane) return Wait::turn;
  for (const Access& written : schedule.accesses(before)) {
    if (written.mode == Mode::read) continue;
    for (const Access& read : schedule.accesses(after)) {
      if (read.mode != Mode::write && overlap(written, read)) return Wait::data;
    }
  }
  return Wait::memory;
}

Wait Causes::why(TaskId task) const {
  SPILLWAY_ASSERT(cause_[task] != none);
  return wait_between(schedule_, cause_[task], task);
}

}  // namespace spillway
