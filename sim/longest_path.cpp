// The fast path of the engine: where nothing is shared, one pass over the activities in order.
#include <algorithm>
#include <functional>

#include "sim/activity_graph.hpp"

namespace spillway {

namespace {

// When a lane can take its next activity.
class LaneClock {
 public:
  explicit LaneClock(std::size_t width) : free_(width, 0) {}

  double next_start() const { return std::max(turn_, free_.front()); }

  // The activity that was started takes the place that is free first.
  void run(double start, double end) {
    turn_ = start;
    if (free_.size() > 1) std::pop_heap(free_.begin(), free_.end(), std::greater());
    free_.back() = end;
    if (free_.size() > 1) std::push_heap(free_.begin(), free_.end(), std::greater());
  }

 private:
  double turn_ = 0;           // when the previous activity started
  std::vector<double> free_;  // a heap: when each place becomes free, the first in front
};

}  // namespace

std::vector<ActivityTimes> checked_longest_path(const ActivityGraph& graph) {
  const SuccessorLists successors(graph);
  const std::size_t count = graph.activities.size();
  std::vector<double> rates;
  for (const Demand& demand : graph.demands) rates.push_back(full_rate(graph.resources, demand));
  std::vector<std::uint32_t> on_lane(graph.lanes.size(), 0);
  for (const Activity& activity : graph.activities) ++on_lane[activity.lane];
  std::vector<LaneClock> clocks;
  for (std::size_t lane = 0; lane < on_lane.size(); ++lane)
    clocks.emplace_back(std::min(graph.lanes[lane].width, std::max(on_lane[lane], 1U)));
  std::vector<double> ready(count, 0);  // when the last predecessor so far has ended
  std::vector<ActivityTimes> times(count);
  for (std::uint32_t a = 0; a < count; ++a) {
    const Activity& activity = graph.activities[a];
    const double start = std::max(ready[a], clocks[activity.lane].next_start());
    double end = start + static_cast<double>(activity.latency_ns);
    if (activity.amount > 0) end += work_ns(activity.amount, rates[activity.demand]);
    if (!(end < most_ns)) throw_too_long();
    clocks[activity.lane].run(start, end);
    times[a] = {round_ns(start), round_ns(end)};
    for (const std::uint32_t successor : successors.of(a))
      ready[successor] = std::max(ready[successor], end);
  }
  return times;
}

bool runs_without_contention(const ActivityGraph& graph) {
  check_activities(graph);
  check_demands(graph.resources, graph.demands);
  return longest_path_applies(graph, find_contention(graph));
}

std::vector<ActivityTimes> longest_path(const ActivityGraph& graph) {
  check_activities(graph);
  check_demands(graph.resources, graph.demands);
  return checked_longest_path(graph);
}

}  // namespace spillway
