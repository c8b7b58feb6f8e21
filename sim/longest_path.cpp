// The fast path of the engine: where nothing is shared, one pass over the activities in order.
#include <algorithm>
#include <cmath>

#include "sim/activity_graph.hpp"

namespace spillway {

namespace {

// The most of each resource that one lane can take at any moment, as (lane x resource).
std::vector<double> most_taken(const ActivityGraph& graph, const FairSharing& sharing) {
  const std::size_t resources = graph.resources.size();
  std::vector<double> most(graph.lanes.size() * resources, 0);
  for (const Activity& activity : graph.activities) {
    if (activity.amount == 0) continue;
    const Demand& demand = graph.demands[activity.demand];
    for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
      double& cell = most[activity.lane * resources + demand.usages[u].resource];
      cell = std::max(cell, sharing.full_rate(activity.demand) * demand.usages[u].per_unit);
    }
  }
  return most;
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

}  // namespace

bool runs_without_contention(const ActivityGraph& graph) {
  check_activities(graph);
  for (const LaneSpec& lane : graph.lanes) {
    if (lane.order != LaneOrder::index) return false;
  }
  const FairSharing sharing(graph.resources, graph.demands);
  for (const Activity& activity : graph.activities) {
    if (activity.amount > 0 && sharing.full_rate(activity.demand) == 0)
      return false;  // it would never end
  }
  const std::size_t resources = graph.resources.size();
  const std::vector<double> most = most_taken(graph, sharing);
  for (std::size_t r = 0; r < resources; ++r) {
    double taken = 0;
    for (std::size_t lane = 0; lane < graph.lanes.size(); ++lane) {
      taken += graph.lanes[lane].width * most[lane * resources + r];
    }
    if (taken > graph.resources[r].capacity * (1 + 1e-12)) return false;
  }
  return all_edges_point_forward(graph);
}

std::vector<ActivityTimes> longest_path(const ActivityGraph& graph) {
  const FairSharing sharing(graph.resources, graph.demands);
  const SuccessorLists successors(graph);
  const std::size_t count = graph.activities.size();
  std::vector<double> ready(count, 0);              // when the last predecessor so far has ended
  std::vector<double> turn(graph.lanes.size(), 0);  // when the lane's previous activity started
  std::vector<std::vector<double>> free(
      graph.lanes.size());  // when each place of the lane becomes free
  for (std::size_t lane = 0; lane < free.size(); ++lane) {
    free[lane].assign(std::min<std::size_t>(graph.lanes[lane].width, count), 0);
  }
  std::vector<ActivityTimes> times(count);
  for (std::uint32_t a = 0; a < count; ++a) {
    const Activity& activity = graph.activities[a];
    std::vector<double>& places = free[activity.lane];
    double& place = *std::min_element(places.begin(), places.end());
    const double start = std::max({ready[a], turn[activity.lane], place});
    double end = start + static_cast<double>(activity.latency_ns);
    if (activity.amount > 0) end += work_ns(activity.amount, sharing.full_rate(activity.demand));
    turn[activity.lane] = start;
    place = end;
    times[a] = {std::llround(start), std::llround(end)};
    for (const std::uint32_t successor : successors.of(a))
      ready[successor] = std::max(ready[successor], end);
  }
  return times;
}

}  // namespace spillway
