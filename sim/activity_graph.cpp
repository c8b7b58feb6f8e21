#include "sim/activity_graph.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace spillway {

namespace {

constexpr std::size_t named_at_most = 8;

std::string name_of(const ActivityGraph& graph, std::uint32_t activity) {
  return graph.describe ? graph.describe(activity) : fmt::format("activity {}", activity);
}

// Up to three predecessors that have not ended; empty if there are none.
std::string unmet_predecessors(const ActivityGraph& graph, std::uint32_t activity,
                               std::span<const ActivityTimes> times) {
  const SuccessorLists successors(graph);
  std::string text;
  int found = 0;
  for (std::uint32_t a = 0; a < graph.activities.size(); ++a) {
    if (times[a].end_ns != not_yet) continue;
    const auto list = successors.of(a);
    if (std::find(list.begin(), list.end(), activity) == list.end()) continue;
    if (++found > 3) return text + ", ...";
    text += (found > 1 ? ", " : "") + name_of(graph, a);
  }
  return text;
}

std::string empty_resources(const ActivityGraph& graph, const Demand& demand) {
  std::string text;
  for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
    const Resource& resource = graph.resources[demand.usages[u].resource];
    if (resource.capacity == 0) text += (text.empty() ? "" : ", ") + resource.name;
  }
  return text.empty() ? "a rate above zero" : "capacity of " + text;
}

std::string why_blocked(const ActivityGraph& graph, std::uint32_t a,
                        std::span<const ActivityTimes> times) {
  const Activity& activity = graph.activities[a];
  if (times[a].start_ns != not_yet) {
    return fmt::format("{} waits for {}", name_of(graph, a),
                       empty_resources(graph, graph.demands[activity.demand]));
  }
  const std::string unmet = unmet_predecessors(graph, a, times);
  return fmt::format("{} waits for {}", name_of(graph, a),
                     unmet.empty() ? "its turn on lane " + graph.lanes[activity.lane].name : unmet);
}

}  // namespace

void check_activities(const ActivityGraph& graph) {
  const std::size_t count = graph.activities.size();
  for (std::size_t a = 0; a < count; ++a) {
    const Activity& activity = graph.activities[a];
    const bool good = activity.lane < graph.lanes.size() && graph.lanes[activity.lane].width > 0 &&
                      activity.amount >= 0 &&
                      activity.amount < std::numeric_limits<double>::infinity() &&
                      activity.latency_ns >= 0 &&
                      (activity.amount == 0 || activity.demand < graph.demands.size());
    if (!good) {
      throw InputError(
          fmt::format("{}: lane {}, demand {}, amount {} or latency {} ns makes no sense",
                      name_of(graph, static_cast<std::uint32_t>(a)), activity.lane, activity.demand,
                      activity.amount, activity.latency_ns));
    }
  }
  const bool no_edges = graph.successor_offsets.empty() && graph.successors.empty();
  if (no_edges && graph.predecessor_counts.empty()) return;
  if (graph.successor_offsets.size() != count + 1 || graph.predecessor_counts.size() != count ||
      graph.successor_offsets.back() != graph.successors.size()) {
    throw InputError(
        "activity graph: successor lists and predecessor counts do not match the activities");
  }
  if (!std::is_sorted(graph.successor_offsets.begin(), graph.successor_offsets.end())) {
    throw InputError("activity graph: successor offsets must not decrease");
  }
  std::vector<std::uint32_t> counts(count, 0);
  for (const std::uint32_t successor : graph.successors) {
    if (successor >= count)
      throw InputError(fmt::format("activity graph: edge to unknown activity {}", successor));
    ++counts[successor];
  }
  if (counts != graph.predecessor_counts) {
    throw InputError("activity graph: predecessor counts do not match the successor lists");
  }
}

void throw_blocked(const ActivityGraph& graph, double now_ns,
                   std::span<const ActivityTimes> times) {
  // Those that have started come first: they are what the others wait for, if there are any.
  std::vector<std::uint32_t> blocked;
  std::size_t count = 0;
  for (const bool started : {true, false}) {
    for (std::uint32_t a = 0; a < times.size(); ++a) {
      if (times[a].end_ns != not_yet || (times[a].start_ns != not_yet) != started) continue;
      ++count;
      if (blocked.size() < named_at_most) blocked.push_back(a);
    }
  }
  std::string text = fmt::format(
      "nothing can go on at {:.6f} s, with {} of {} activities blocked: ", now_ns * 1e-9, count,
      times.size());
  for (std::size_t i = 0; i < blocked.size(); ++i) {
    text += (i > 0 ? "; " : "") + why_blocked(graph, blocked[i], times);
  }
  if (count > blocked.size()) text += "; ...";
  throw BlockedError(
      text,
      "give every resource that is used a capacity above zero, and let no activity wait for "
      "one that waits for it");
}

}  // namespace spillway
