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
#pragma once

#include <cstdint>
#include <functional>
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

// Nothing can go on, and not everything has ended: says which activities are stuck and what each
// waits for (a resource without capacity, a predecessor in a cycle, its turn on a lane).
class BlockedError : public InputError {
 public:
  using InputError::InputError;
};

// Handles events one after the other; throws BlockedError, or InputError for inconsistent input.
std::vector<ActivityTimes> run_events(const ActivityGraph& graph);

// True if nothing is ever slowed by anything else: for every resource, the sum over lanes of the
// most that lane can take stays within capacity; and all edges point forward and lanes serve in
// index order.
bool runs_without_contention(const ActivityGraph& graph);

// The same result as run_events where runs_without_contention: one pass over the activities in
// order, end = max(ends of predecessors, lane free) + latency + amount / full rate.
std::vector<ActivityTimes> longest_path(const ActivityGraph& graph);

// The faster of the two that applies.
std::vector<ActivityTimes> simulate_activities(const ActivityGraph& graph);

// Nanoseconds the activity takes on its own, latency included.
double uncontended_ns(const Activity& activity, const FairSharing& sharing);

}  // namespace spillway
