#include "sim/critical_path.hpp"
#include "policies/model/stages.hpp"

#include <algorithm>
#include <array>

#include "base/units.hpp"
#include "sim/sharing_losses.hpp"

namespace spillway {

namespace {

// A stretch of the critical path.
struct Stretch {
  TaskId task = none;
  std::int64_t begin_ns = 0, end_ns = 0;
};

std::vector<CriticalPart> sum_by_class(const Schedule& schedule, const std::vector<Stretch>& path) {
  std::vector<std::int64_t> sums(task_class_count, 0);
  for (const Stretch& stretch : path)
    sums[index_of(class_of(schedule, schedule.tasks()[stretch.task]))] +=
        stretch.end_ns - stretch.begin_ns;
  std::vector<CriticalPart> parts;
  for (std::size_t index = 0; index < sums.size(); ++index) {
    if (sums[index] > 0) parts.push_back({task_class_at(index), sums[index], {}});
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const CriticalPart& a, const CriticalPart& b) { return a.ns > b.ns; });
  return parts;
}

void add_losses(const Schedule& schedule, const ActivityGraph& graph,
                const SimulationResult& result, const SteadyWindow& window,
                const std::vector<Stretch>& path, std::vector<CriticalPart>& parts) {
  const std::size_t resources = graph.resources.size();
  std::vector<double> lost(task_class_count * resources, 0);
  const FairSharing sharing(graph.resources, graph.demands);
  SharingLosses losses(schedule, graph, result.tasks, window.begin_ns);
  for (const Stretch& stretch : path) {
    const std::size_t index = index_of(class_of(schedule, schedule.tasks()[stretch.task]));
    const SimulatedTask& times = result.tasks[stretch.task];
    const double alone = uncontended_ns(graph.activities[stretch.task], sharing);
    // Times are rounded to nanoseconds.
    if (static_cast<double>(times.end_ns - times.start_ns) < alone + 2) continue;
    losses.add(stretch.task, stretch.begin_ns, stretch.end_ns,
               std::span(lost).subspan(index * resources, resources));
  }
  for (CriticalPart& part : parts) {
    for (std::size_t r = 0; r < resources; ++r) {
      const double ns = lost[index_of(part.of) * resources + r];
      if (ns > 0) part.lost_ns.emplace_back(graph.resources[r].name, ns);
    }
  }
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

std::string lost_text(const CriticalPart& part, int steps) {
  std::string text;
  for (const auto& [resource, ns] : part.lost_ns) {
    if (ns < 0.001 * static_cast<double>(part.ns)) continue;
    text +=
        (text.empty() ? "" : ", ") + format_seconds(ns * 1e-9 / steps) + " to sharing " + resource;
  }
  return text;
}

CriticalPath find_critical_path(const Schedule& schedule, const ActivityGraph* graph,
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
  critical.parts = sum_by_class(schedule, path);
  if (graph == nullptr) return critical;
  add_losses(schedule, *graph, result, window, path, critical.parts);
  // Most of what a stage waits for is done by others, which are not in its schedule.
  if (!is_stage(schedule.problem().model))
    critical.chain_ns = longest_chain(schedule, *graph, result, window);
  return critical;
}

}  // namespace spillway
