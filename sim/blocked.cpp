// Says why a simulation cannot go on: what is at the root of it, and what each activity waits for.
//
// Every activity that is blocked waits for one of: a resource (it runs, at rate zero), a
// predecessor, the activity ahead of it on its lane, or a place on its lane. Following one such
// wait after the other leads to an activity that runs at rate zero, or round in a circle.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sim/activity_graph.hpp"

namespace spillway {

namespace {

constexpr std::size_t named_at_most = 8, lanes_at_most = 8, predecessors_at_most = 3;
constexpr std::uint32_t nobody = std::numeric_limits<std::uint32_t>::max();

class Diagnosis {
 public:
  Diagnosis(const ActivityGraph& graph, std::span<const ActivityTimes> times);
  std::string text(double now_ns) const;
  std::string hint() const;
  std::vector<std::uint32_t> blocked() const { return blocked_; }

 private:
  bool ended(std::uint32_t a) const { return times_[a].end_ns != not_yet; }
  bool started(std::uint32_t a) const { return times_[a].start_ns != not_yet; }
  std::uint32_t waits_for(std::uint32_t activity) const;
  void find_circle();
  std::vector<std::uint32_t> named() const;
  std::string reason(std::uint32_t activity) const;
  std::string unmet_predecessors(std::uint32_t activity) const;
  std::string others(const std::vector<std::uint32_t>& named) const;

  const ActivityGraph& graph_;
  const SuccessorLists successors_;
  std::span<const ActivityTimes> times_;
  std::vector<std::uint32_t> blocked_;            // ascending
  std::vector<std::uint32_t> starving_;           // have started
  std::vector<std::uint32_t> circle_;             // each waits for the next, the last for the first
  std::vector<std::uint32_t> first_predecessor_;  // by activity: the first that has not ended
  std::vector<std::uint32_t> ahead_;              // by lane: the first that has not started
  std::vector<std::uint32_t> holder_;             // by lane: the first that runs
};

Diagnosis::Diagnosis(const ActivityGraph& graph, std::span<const ActivityTimes> times)
    : graph_(graph),
      successors_(graph),
      times_(times),
      first_predecessor_(times.size(), nobody),
      ahead_(graph.lanes.size(), nobody),
      holder_(graph.lanes.size(), nobody) {
  for (std::uint32_t a = 0; a < times.size(); ++a) {
    if (ended(a)) continue;
    blocked_.push_back(a);
    if (started(a)) starving_.push_back(a);
    std::uint32_t& first = (started(a) ? holder_ : ahead_)[graph.activities[a].lane];
    first = std::min(first, a);
    for (const std::uint32_t successor : successors_.of(a))
      first_predecessor_[successor] = std::min(first_predecessor_[successor], a);
  }
  find_circle();
}

// One activity that this one waits for; nobody: a resource.
std::uint32_t Diagnosis::waits_for(std::uint32_t activity) const {
  if (started(activity)) return nobody;
  if (first_predecessor_[activity] != nobody) return first_predecessor_[activity];
  const std::uint32_t lane = graph_.activities[activity].lane;
  const bool in_turn = graph_.lanes[lane].order == LaneOrder::index && ahead_[lane] != activity;
  return in_turn ? ahead_[lane] : holder_[lane];
}

// The first one, from the activity with the smallest index that leads to one.
void Diagnosis::find_circle() {
  std::vector<std::uint32_t> seen_from(times_.size(), nobody);
  for (const std::uint32_t from : blocked_) {
    std::uint32_t at = from;
    for (; at != nobody && seen_from[at] == nobody; at = waits_for(at)) seen_from[at] = from;
    if (at == nobody || seen_from[at] != from) continue;  // it starves, or leads where others did
    const std::uint32_t first = at;
    do {
      circle_.push_back(at);
      at = waits_for(at);
    } while (at != first);
    return;
  }
}

// Those that starve, the circle, then any: the first few.
std::vector<std::uint32_t> Diagnosis::named() const {
  std::vector<std::uint32_t> result;
  const auto add = [&](const std::vector<std::uint32_t>& list, std::size_t at_most) {
    for (const std::uint32_t a : list) {
      if (result.size() >= at_most) return;
      if (std::find(result.begin(), result.end(), a) == result.end()) result.push_back(a);
    }
  };
  add(starving_, circle_.empty() ? named_at_most : named_at_most / 2);
  add(circle_, named_at_most);
  add(blocked_, named_at_most);
  return result;
}

std::string Diagnosis::unmet_predecessors(std::uint32_t activity) const {
  std::string text;
  std::size_t found = 0;
  for (const std::uint32_t a : blocked_) {
    const auto list = successors_.of(a);
    if (std::find(list.begin(), list.end(), activity) == list.end()) continue;
    if (++found > predecessors_at_most) return text + ", ...";
    text += (found > 1 ? ", " : "") + name_of(graph_, a);
  }
  return text;
}

std::string Diagnosis::reason(std::uint32_t a) const {
  const Activity& activity = graph_.activities[a];
  const LaneSpec& lane = graph_.lanes[activity.lane];
  if (started(a)) {
    std::string empty;
    for (const Usage& usage : graph_.demands[activity.demand].usages) {
      const Resource& resource = graph_.resources[usage.resource];
      if (resource.capacity == 0) empty += (empty.empty() ? "" : ", ") + resource.name;
    }
    return empty.empty() ? "a rate above zero" : "capacity of " + empty;
  }
  if (first_predecessor_[a] != nobody) return unmet_predecessors(a);
  const std::string other = name_of(graph_, waits_for(a));
  if (lane.order == LaneOrder::index && ahead_[activity.lane] != a)
    return fmt::format("its turn on lane {}, behind {}", lane.name, other);
  return fmt::format("a place on lane {}, held by {}", lane.name, other);
}

// "; and 4992 more: 3000 on lane a, 1992 on lane b".
std::string Diagnosis::others(const std::vector<std::uint32_t>& named) const {
  if (blocked_.size() == named.size()) return "";
  std::map<std::uint32_t, std::size_t> by_lane;
  for (const std::uint32_t a : blocked_) ++by_lane[graph_.activities[a].lane];
  for (const std::uint32_t a : named) --by_lane[graph_.activities[a].lane];
  std::string text = fmt::format("; and {} more:", blocked_.size() - named.size());
  std::size_t lanes = 0;
  for (const auto& [lane, count] : by_lane) {
    if (count == 0) continue;
    if (++lanes > lanes_at_most) return text + ", ...";
    text += fmt::format("{} {} on lane {}", lanes > 1 ? "," : "", count, graph_.lanes[lane].name);
  }
  return text;
}

std::string Diagnosis::text(double now_ns) const {
  std::string text = fmt::format(
      "nothing can go on at {:.6f} s, with {} of {} activities blocked: ", now_ns * 1e-9,
      blocked_.size(), times_.size());
  const std::vector<std::uint32_t> names = named();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += "; ";
    if (!circle_.empty() && names[i] == circle_.front()) {
      text += circle_.size() == 1
                  ? "it waits for itself: "
                  : fmt::format("{} wait for each other in a circle: ", circle_.size());
    }
    text += fmt::format("{} waits for {}", name_of(graph_, names[i]), reason(names[i]));
  }
  return text + others(names);
}

std::string Diagnosis::hint() const {
  std::string text;
  if (!starving_.empty())
    text = "give every resource that is used a capacity, and every rate cap a value, above zero";
  if (!circle_.empty()) {
    text += fmt::format(
        "{}let no activity wait for one that waits for it; on a lane in index "
        "order each also waits for those ahead of it",
        text.empty() ? "" : "; ");
  }
  return text;
}

}  // namespace

void throw_blocked(const ActivityGraph& graph, double now_ns,
                   std::span<const ActivityTimes> times) {
  const Diagnosis diagnosis(graph, times);
  throw BlockedError(diagnosis.text(now_ns), diagnosis.hint(), diagnosis.blocked());
}

}  // namespace spillway
