// Helpers of the engine that both ways of simulating share; not for use outside sim/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine.hpp"

namespace spillway {

// The graph's successor lists, whether it has edges or not.
class SuccessorLists {
 public:
  explicit SuccessorLists(const ActivityGraph& graph)
      : offsets_(graph.successor_offsets), targets_(graph.successors) {}
  std::span<const std::uint32_t> of(std::uint32_t activity) const {
    if (offsets_.empty()) return {};
    return targets_.subspan(offsets_[activity], offsets_[activity + 1] - offsets_[activity]);
  }

 private:
  std::span<const std::uint32_t> offsets_;
  std::span<const std::uint32_t> targets_;
};

// Gives the graph these edges, {before, after}, which it sorts.
inline void list_edges(ActivityGraph& graph,
                       std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges) {
  std::sort(edges.begin(), edges.end());
  graph.successor_offsets.assign(graph.activities.size() + 1, 0);
  graph.predecessor_counts.assign(graph.activities.size(), 0);
  for (const auto& [from, to] : edges) {
    ++graph.successor_offsets[from + 1];
    ++graph.predecessor_counts[to];
    graph.successors.push_back(to);
  }
  for (std::size_t a = 0; a < graph.activities.size(); ++a)
    graph.successor_offsets[a + 1] += graph.successor_offsets[a];
}

// Nanoseconds for `amount` units at `rate` units per second.
inline double work_ns(double amount, double rate) {
  if (amount == 0) return 0;
  return rate > 0 ? amount / rate * 1e9 : std::numeric_limits<double>::infinity();
}

// To the nearest integer, halves up; `ns` is not negative.
inline std::int64_t round_ns(double ns) {
  const auto whole = static_cast<std::int64_t>(ns);
  return whole + (ns - static_cast<double>(whole) >= 0.5 ? 1 : 0);
}

// Throws InputError for a lane, demand, amount, latency or edge that makes no sense. Returns how
// many predecessors each activity has.
std::vector<std::uint32_t> check_activities(const ActivityGraph& graph);

// By resource: whether it can ever be asked for more than its capacity, given that a lane runs at
// most its width at once: sum over lanes of width x the most that one activity there can take.
std::vector<char> find_contention(const ActivityGraph& graph);

// The parts of runs_without_contention and longest_path that come after the checks.
bool longest_path_applies(const ActivityGraph& graph, std::span<const char> can_saturate);
std::vector<ActivityTimes> checked_longest_path(const ActivityGraph& graph);

inline constexpr std::int64_t not_yet = -1;

// Throws BlockedError; a start or end in `times` that has not come is `not_yet`.
[[noreturn]] void throw_blocked(const ActivityGraph& graph, double now_ns,
                                std::span<const ActivityTimes> times);

// The report's nanoseconds have 63 bits, about 292 years. Throws InputError.
inline constexpr double most_ns = 9.2e18;
[[noreturn]] void throw_too_long();

// "activity 7", or what the graph calls it.
std::string name_of(const ActivityGraph& graph, std::uint32_t activity);

}  // namespace spillway
