// Who slows whom: the resource that holds an activity below its full rate, moment by moment.
//
// The rates of the engine follow from which activities are working, and of these there are few
// different sets; so the times of all tasks are enough to find the rates again.
#pragma once

#include <span>
#include <vector>

#include "sim/costed_schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

class SharingLosses {
 public:
  // Keeps references to all. `from_ns`: nothing is asked of the time before it.
  SharingLosses(const Schedule& schedule, const ActivityGraph& graph,
                std::span<const SimulatedTask> times, std::int64_t from_ns);

  // Adds to lost_ns (by resource) how long `task` took more in [begin_ns, end_ns) than at its full
  // rate: the sum over time of 1 - rate / full rate, charged to the saturated resource of which it
  // gets the largest share per weight, its bottleneck. Calls must be in order of time.
  void add(TaskId task, std::int64_t begin_ns, std::int64_t end_ns, std::span<double> lost_ns);

 private:
  // What limits each of the activities in a set; by slot.
  struct State {
    std::vector<double> loss;             // 1 - rate / full rate
    std::vector<std::uint32_t> resource;  // its bottleneck; none: it has its full rate
  };
  // The tasks of a lane that work, in order of time.
  struct LaneTasks {
    std::vector<TaskId> tasks;
    std::size_t at = 0;  // the first that has not ended
  };
  const State& state_of(std::uint64_t working);
  State solve(std::uint64_t working);
  std::uint32_t slot_of(TaskId task) const;

  const ActivityGraph& graph_;
  std::span<const SimulatedTask> times_;
  FairSharing sharing_;
  std::vector<LaneTasks> lanes_;
  // A slot is a pair of lane and demand that occurs; a set of working activities has a bit for
  // each.
  std::vector<std::uint32_t> slots_;                     // by lane x demand; none: does not occur
  std::vector<std::uint32_t> slot_demands_;              // by slot
  std::vector<std::pair<std::uint64_t, State>> states_;  // met so far
};

}  // namespace spillway
