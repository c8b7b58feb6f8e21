#include "sim/activity_graph.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace spillway {

namespace {

struct LaneDemand {
  std::uint32_t lane = 0, demand = 0;
  auto operator<=>(const LaneDemand&) const = default;
};

// Each demand that some activity of a lane has, once, by lane.
std::vector<LaneDemand> demands_of_lanes(const ActivityGraph& graph) {
  std::vector<LaneDemand> result;
  const std::size_t demands = graph.demands.size(), cells = graph.lanes.size() * demands;
  if (cells <= 64 * graph.activities.size() + 4096) {  // a table takes less than a list to sort
    std::vector<bool> seen(cells, false);
    for (const Activity& activity : graph.activities) {
      if (activity.amount == 0) continue;
      const std::size_t cell = activity.lane * demands + activity.demand;
      if (seen[cell]) continue;
      seen[cell] = true;
      result.push_back({activity.lane, activity.demand});
    }
  } else {
    for (const Activity& activity : graph.activities) {
      if (activity.amount > 0) result.push_back({activity.lane, activity.demand});
    }
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

bool all_edges_point_forward(const ActivityGraph& graph) {
  const SuccessorLists successors(graph);
  for (std::uint32_t a = 0; a < graph.activities.size(); ++a) {
    for (const std::uint32_t successor : successors.of(a)) {
      if (successor <= a) return false;
    }
  }
  return true;
}

void check_work(const ActivityGraph& graph) {
  for (std::size_t a = 0; a < graph.activities.size(); ++a) {
    const Activity& activity = graph.activities[a];
    const bool good = activity.lane < graph.lanes.size() && graph.lanes[activity.lane].width > 0 &&
                      activity.amount >= 0 &&
                      activity.amount < std::numeric_limits<double>::infinity() &&
                      activity.latency_ns >= 0 &&
                      (activity.amount == 0 || activity.demand < graph.demands.size());
    if (good) continue;
    throw InputError(
        fmt::format("{}: lane {}, demand {}, amount {} or latency {} ns makes no sense",
                    name_of(graph, static_cast<std::uint32_t>(a)), activity.lane, activity.demand,
                    activity.amount, activity.latency_ns));
  }
}

}  // namespace

std::string name_of(const ActivityGraph& graph, std::uint32_t activity) {
  return graph.describe ? graph.describe(activity) : fmt::format("activity {}", activity);
}

std::vector<std::uint32_t> check_activities(const ActivityGraph& graph) {
  const std::size_t count = graph.activities.size();
  if (count >= std::numeric_limits<std::uint32_t>::max())
    throw InputError(fmt::format("activity graph: {} activities are more than 2^32 - 2", count));
  check_work(graph);
  std::vector<std::uint32_t> counts(count, 0);
  const bool no_edges = graph.successor_offsets.empty() && graph.successors.empty();
  if (no_edges && graph.predecessor_counts.empty()) return counts;
  if (graph.successor_offsets.size() != count + 1 || graph.predecessor_counts.size() != count ||
      graph.successor_offsets.front() != 0 ||
      graph.successor_offsets.back() != graph.successors.size()) {
    throw InputError(
        "activity graph: successor lists and predecessor counts do not match the activities");
  }
  if (!std::is_sorted(graph.successor_offsets.begin(), graph.successor_offsets.end())) {
    throw InputError("activity graph: successor offsets must not decrease");
  }
  for (const std::uint32_t successor : graph.successors) {
    if (successor >= count)
      throw InputError(fmt::format("activity graph: edge to unknown activity {}", successor));
    ++counts[successor];
  }
  if (counts != graph.predecessor_counts) {
    throw InputError("activity graph: predecessor counts do not match the successor lists");
  }
  return counts;
}

std::vector<char> find_contention(const ActivityGraph& graph) {
  std::vector<std::uint32_t> on_lane(graph.lanes.size(), 0);
  for (const Activity& activity : graph.activities) ++on_lane[activity.lane];
  const std::size_t resources = graph.resources.size();
  std::vector<double> taken(resources, 0), most(resources, 0);  // in all; by the lane at hand
  std::vector<std::uint32_t> used;                              // by the lane at hand
  const std::vector<LaneDemand> pairs = demands_of_lanes(graph);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::uint32_t lane = pairs[i].lane;
    const Demand& demand = graph.demands[pairs[i].demand];
    const double rate = full_rate(graph.resources, demand);
    for (const Usage& usage : demand.usages) {
      if (most[usage.resource] == 0) used.push_back(usage.resource);
      most[usage.resource] = std::max(most[usage.resource], rate * usage.per_unit);
    }
    if (i + 1 < pairs.size() && pairs[i + 1].lane == lane) continue;
    for (const std::uint32_t r : used) {
      taken[r] += std::min(graph.lanes[lane].width, on_lane[lane]) * most[r];
      most[r] = 0;
    }
    used.clear();
  }
  std::vector<char> can_saturate(resources);
  for (std::size_t r = 0; r < resources; ++r)
    can_saturate[r] = taken[r] > graph.resources[r].capacity * (1 + 1e-12);
  return can_saturate;
}

bool longest_path_applies(const ActivityGraph& graph, std::span<const char> can_saturate) {
  for (const LaneSpec& lane : graph.lanes) {
    if (lane.order != LaneOrder::index) return false;
  }
  if (std::find(can_saturate.begin(), can_saturate.end(), 1) != can_saturate.end()) return false;
  for (const LaneDemand& pair : demands_of_lanes(graph)) {
    if (full_rate(graph.resources, graph.demands[pair.demand]) == 0) return false;  // never ends
  }
  return all_edges_point_forward(graph);
}

void throw_too_long() {
  throw InputError("the simulated time exceeds 292 years, the most that nanoseconds can hold",
                   "are the amounts and the rates in the units that were meant?");
}

}  // namespace spillway
