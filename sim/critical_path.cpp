#include "sim/critical_path.hpp"

#include <algorithm>
#include <array>

#include "sim/sharing_losses.hpp"

namespace spillway {

namespace {

// A stretch of the critical path.
struct Stretch {
  TaskId task = none;
  std::int64_t begin_ns = 0, end_ns = 0;
};

std::vector<CriticalPart> sum_by_class(const Schedule& schedule, const ActivityGraph& graph,
                                       const SimulationResult& result, const SteadyWindow& window,
                                       const std::vector<Stretch>& path) {
  const std::size_t resources = graph.resources.size();
  std::vector<std::int64_t> sums(task_class_count, 0);
  std::vector<double> lost(task_class_count * resources, 0);
  const FairSharing sharing(graph.resources, graph.demands);
  SharingLosses losses(schedule, graph, result.tasks, window.begin_ns);
  for (const Stretch& stretch : path) {
    const std::size_t index = index_of(class_of(schedule, schedule.tasks()[stretch.task]));
    sums[index] += stretch.end_ns - stretch.begin_ns;
    const SimulatedTask& times = result.tasks[stretch.task];
    const double alone = uncontended_ns(graph.activities[stretch.task], sharing);
    // Times are rounded to nanoseconds.
    if (static_cast<double>(times.end_ns - times.start_ns) < alone + 2) continue;
    losses.add(stretch.task, stretch.begin_ns, stretch.end_ns,
               std::span(lost).subspan(index * resources, resources));
  }
  std::vector<CriticalPart> parts;
  for (std::size_t index = 0; index < sums.size(); ++index) {
    if (sums[index] == 0) continue;
    CriticalPart part{task_class_at(index), sums[index], {}};
    for (std::size_t r = 0; r < resources; ++r) {
      const double ns = lost[index * resources + r];
      if (ns > 0) part.lost_ns.emplace_back(graph.resources[r].name, ns);
    }
    parts.push_back(std::move(part));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const CriticalPart& a, const CriticalPart& b) { return a.ns > b.ns; });
  return parts;
}

// The tasks that count are those that start inside the window and whose chain ends in it.
double longest_chain(const Schedule& schedule, const ActivityGraph& graph,
                     const SimulationResult& result, const SteadyWindow& window) {
  const FairSharing sharing(graph.resources, graph.demands);
  std::vector<double> ready(result.tasks.size(), 0);  // the longest chain of predecessors
  std::array<double, lane_count> lane_free{};
  double longest = 0;
  for (TaskId task = 0; task < result.tasks.size(); ++task) {
    const SimulatedTask& times = result.tasks[task];
    if (times.start_ns < window.begin_ns || times.end_ns > window.end_ns) continue;
    const Activity& activity = graph.activities[task];
    const double end =
        std::max(ready[task], lane_free[activity.lane]) + uncontended_ns(activity, sharing);
    lane_free[activity.lane] = end;
    longest = std::max(longest, end);
    for (const TaskId successor : schedule.successors(task))
      ready[successor] = std::max(ready[successor], end);
  }
  return longest;
}

}  // namespace

CriticalPath find_critical_path(const Schedule& schedule, const ActivityGraph& graph,
                                const SimulationResult& result, const Causes& causes,
                                const SteadyWindow& window) {
  std::vector<Stretch> path;
  if (window.begin_ns < window.end_ns) {
    causes.walk_back(last_task(schedule, result, window), window.begin_ns, window.end_ns,
                     [&](TaskId task, std::int64_t begin, std::int64_t end) {
                       path.push_back({task, begin, end});
                     });
  }
  std::reverse(path.begin(), path.end());
  CriticalPath critical;
  critical.tasks.reserve(path.size());
  for (const Stretch& stretch : path) critical.tasks.push_back(stretch.task);
  critical.parts = sum_by_class(schedule, graph, result, window, path);
  critical.chain_ns = longest_chain(schedule, graph, result, window);
  return critical;
}

}  // namespace spillway
