// Why did each task start when it did, and not before?
//
// A task starts when its last predecessor has ended and the task before it on its lane has: the one
// of these that ends last is its cause. Following causes back from any task gives a chain of tasks
// without gaps in time.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "sim/simulate.hpp"

namespace spillway {

// What a task wants of its cause.
enum class Wait : std::uint8_t {
  data,     // it reads what the cause wrote
  memory,   // it writes where the cause read or wrote something else: the memory has to be free
  barrier,  // one of the two is a barrier
  turn,     // the cause was before it on its lane
  end       // nothing waits any more: the time that is looked at ends with the cause
};
inline constexpr int wait_count = 5;
const char* to_string(Wait wait);  // "data"
const char* in_words(Wait wait);   // behind what is waited for: "so that memory is free"; data: ""

// Why `second` has to wait for `first`, of which it is a successor, or the next task on its lane.
Wait wait_between(const Schedule& schedule, TaskId first, TaskId second);

class Causes {
 public:
  // Causes of the tasks that start after `from_ns`; others may have none. Looks at every edge once.
  // Keeps references to both.
  Causes(const Schedule& schedule, std::span<const SimulatedTask> times, std::int64_t from_ns);

  // The task whose end let `task` start; none: nothing, it started at once. Always a lower id.
  TaskId of(TaskId task) const { return cause_[task]; }
  // Why `task` had to wait for its cause, which it must have; never Wait::end.
  Wait why(TaskId task) const;

  // Calls visit(task, begin_ns, end_ns) for `task` and its chain of causes, latest first: stretches
  // of time that join each other, from `until_ns` back to `from_ns`.
  template <class Visit>
  void walk_back(TaskId task, std::int64_t from_ns, std::int64_t until_ns,
                 const Visit& visit) const {
    std::int64_t end = until_ns;
    for (; task != none && end > from_ns; task = of(task)) {
      const std::int64_t begin = std::max(from_ns, std::min(times_[task].start_ns, end));
      if (begin < end) visit(task, begin, end);
      end = begin;
    }
  }

 private:
  const Schedule& schedule_;
  std::span<const SimulatedTask> times_;
  std::vector<TaskId> cause_;  // by task
};

}  // namespace spillway
