// The discrete-event engine: when does each activity of a graph start and end?
//
// It knows nothing of training. Activities wait for their predecessors, queue on lanes, and compete
// for resources while they work:
//
//   ready    when all predecessors have ended
//   start    when its lane has a free place and it is its turn
//   latency  a fixed time that uses nothing
//   work     `amount` units at the rate that fair sharing gives its demand (sim/fair_sharing.hpp)
//   end      when nothing is left
//
// Time is kept in double-precision nanoseconds and rounded to the nearest nanosecond only in the
// result, so rounding does not add up along a chain. Simultaneous ends are handled in order of
// activity index; the same input gives the same bytes.
//
// An event costs O(log n) in the number n of activities that run at once, plus solving the rates
// anew where the mix of demands that run has changed; nothing depends on how many activities the
// graph has. Beside the graph, which takes 32 bytes per activity and 4 per edge, a run needs 24
// bytes per activity: 16 are the result.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "sim/fair_sharing.hpp"

namespace spillway {

enum class LaneOrder : std::uint8_t {
  index,  // in order of activity index: one that is not ready holds up those behind it
  ready   // first ready, first served; ties by activity index
};

struct LaneSpec {
  std::string name;
  LaneOrder order = LaneOrder::index;
  std::uint32_t width = 1;  // activities that may run at once
};

struct Activity {
  std::uint32_t lane = 0;
  std::uint32_t demand = 0;  // not looked at when amount is 0
  double amount = 0;         // units of work, >= 0
  std::int64_t latency_ns = 0;
};

struct ActivityGraph {
  std::vector<Resource> resources;
  std::vector<Demand> demands;
  std::vector<LaneSpec> lanes;
  std::vector<Activity> activities;
  // The activities that wait for activity a: successors[successor_offsets[a] .. successor_offsets[a
  // + 1]).
  std::vector<std::uint32_t> successor_offsets;  // activities + 1; empty: no edges
  std::vector<std::uint32_t> successors;
  std::vector<std::uint32_t> predecessor_counts;  // by activity; empty: no edges
  // Names an activity in messages; empty: "activity 7".
  std::function<std::string(std::uint32_t)> describe;
};

struct ActivityTimes {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  bool operator==(const ActivityTimes&) const = default;
};

// Nothing can go on, and not everything has ended. The message says what is at the root of it
// (resources without capacity, circles of activities that wait for each other), names the first
// activities that are stuck with what each waits for, and counts the others by lane.
class BlockedError : public InputError {
 public:
  BlockedError(const std::string& what, std::string hint, std::vector<std::uint32_t> blocked)
      : InputError(what, std::move(hint)), blocked_(std::move(blocked)) {}
  // All that have not ended, ascending.
  const std::vector<std::uint32_t>& blocked() const { return blocked_; }

 private:
  std::vector<std::uint32_t> blocked_;
};

// What a run has cost, in operations that do not depend on the computer.
struct EngineCounts {
  std::uint64_t moments = 0;          // different times at which something happened
  std::uint64_t queue_steps = 0;      // moves within the queues of what comes next
  std::uint64_t lane_visits = 0;      // times a lane was asked for what can start
  std::uint64_t edges = 0;            // edges followed
  std::uint64_t solutions = 0;        // times that rates were solved
  std::uint64_t demands_visited = 0;  // demands looked at while solving
  std::uint64_t memory_bytes = 0;     // allocated for the run, the result included

  std::uint64_t operations() const {
    return moments + queue_steps + lane_visits + edges + solutions + demands_visited;
  }
};

// Handles events one after the other; throws BlockedError, or InputError for inconsistent input.
// Adds what it has cost to `counts`, if given.
std::vector<ActivityTimes> run_events(const ActivityGraph& graph, EngineCounts* counts = nullptr);

// True if nothing is ever slowed by anything else: for every resource, the sum over lanes of the
// most that lane can take stays within capacity; and all edges point forward, lanes serve in index
// order, and every rate is above zero.
bool runs_without_contention(const ActivityGraph& graph);

// The same result as run_events where runs_without_contention: one pass over the activities in
// order, end = max(ends of predecessors, lane free) + latency + amount / full rate.
std::vector<ActivityTimes> longest_path(const ActivityGraph& graph);

// The faster of the two that applies.
std::vector<ActivityTimes> simulate_activities(const ActivityGraph& graph);

// Where a run may end early: once `watched` has started, and all that ran then, and all activities
// before `before`, have ended.
struct StopAt {
  std::uint32_t watched = 0, before = 0;
};
// Stands for times that were not reached, later than all that were.
inline constexpr std::int64_t not_reached_ns = std::numeric_limits<std::int64_t>::max() / 4;
// The same times, up to there.
std::vector<ActivityTimes> simulate_activities(const ActivityGraph& graph, const StopAt& stop);

// Nanoseconds the activity takes on its own, latency included.
double uncontended_ns(const Activity& activity, const FairSharing& sharing);

}  // namespace spillway
