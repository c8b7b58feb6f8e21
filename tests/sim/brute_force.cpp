#include "tests/sim/brute_force.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace spillway::test {

namespace {

constexpr long double infinity = std::numeric_limits<long double>::infinity();
constexpr long double same = 1e-15L;  // relative: times and levels this close are one

enum class Stage { waiting, latency, work, ended };

class Plain {
 public:
  explicit Plain(const ActivityGraph& graph);
  std::vector<PlainTimes> run();

 private:
  void start_what_can();
  bool can_start(std::uint32_t activity) const;
  void begin_stage(std::uint32_t activity, Stage stage);
  void step();
  void end(std::uint32_t activity);

  const ActivityGraph& graph_;
  std::vector<Stage> stages_;
  std::vector<long double> left_;  // seconds of latency, or units of work
  std::vector<std::uint32_t> waiting_for_;
  std::vector<long double> ready_;      // round at which it became ready, for lanes in that order
  std::vector<std::uint32_t> running_;  // by lane
  std::vector<PlainTimes> times_;
  long double now_ = 0;
  long double round_ = 0;
};

Plain::Plain(const ActivityGraph& graph)
    : graph_(graph),
      stages_(graph.activities.size(), Stage::waiting),
      left_(graph.activities.size(), 0),
      waiting_for_(graph.predecessor_counts),
      ready_(graph.activities.size(), infinity),
      running_(graph.lanes.size(), 0),
      times_(graph.activities.size()) {
  waiting_for_.resize(graph.activities.size(), 0);
  for (std::size_t a = 0; a < ready_.size(); ++a) {
    if (waiting_for_[a] == 0) ready_[a] = 0;
  }
}

bool Plain::can_start(std::uint32_t activity) const {
  const std::uint32_t lane = graph_.activities[activity].lane;
  if (stages_[activity] != Stage::waiting || waiting_for_[activity] > 0) return false;
  if (running_[lane] == graph_.lanes[lane].width) return false;
  for (std::uint32_t other = 0; other < stages_.size(); ++other) {
    if (graph_.activities[other].lane != lane || stages_[other] != Stage::waiting) continue;
    const bool before = graph_.lanes[lane].order == LaneOrder::index
                            ? other < activity
                            : ready_[other] < ready_[activity] ||
                                  (ready_[other] == ready_[activity] && other < activity);
    if (before) return false;
  }
  return true;
}

void Plain::begin_stage(std::uint32_t a, Stage stage) {
  const Activity& activity = graph_.activities[a];
  stages_[a] = stage;
  left_[a] = stage == Stage::latency ? static_cast<long double>(activity.latency_ns) * 1e-9L
                                     : static_cast<long double>(activity.amount);
}

void Plain::start_what_can() {
  for (bool any = true; any;) {
    any = false;
    for (std::uint32_t a = 0; a < stages_.size(); ++a) {
      if (!can_start(a)) continue;
      any = true;
      times_[a].start = now_;
      ++running_[graph_.activities[a].lane];
      const bool at_once = graph_.activities[a].latency_ns == 0 && graph_.activities[a].amount > 0;
      begin_stage(a, at_once ? Stage::work : Stage::latency);
    }
  }
}

void Plain::end(std::uint32_t activity) {
  stages_[activity] = Stage::ended;
  times_[activity].end = now_;
  --running_[graph_.activities[activity].lane];
  for (std::uint32_t e = graph_.successor_offsets[activity];
       e < graph_.successor_offsets[activity + 1]; ++e) {
    if (--waiting_for_[graph_.successors[e]] == 0) ready_[graph_.successors[e]] = round_;
  }
}

// Goes on to the next moment at which a latency or some work ends.
void Plain::step() {
  std::vector<std::uint32_t> busy, demands;
  for (std::uint32_t a = 0; a < stages_.size(); ++a) {
    if (stages_[a] != Stage::latency && stages_[a] != Stage::work) continue;
    busy.push_back(a);
    if (stages_[a] == Stage::work) demands.push_back(graph_.activities[a].demand);
  }
  const std::vector<long double> filled = water_fill(graph_, demands);
  std::vector<long double> rates;  // by place in `busy`: what goes off left_ in a second
  long double next = infinity;
  for (std::size_t i = 0, w = 0; i < busy.size(); ++i) {
    rates.push_back(stages_[busy[i]] == Stage::work ? filled[w++] : 1.0L);
    next = std::min(next, left_[busy[i]] == 0 ? 0 : left_[busy[i]] / rates[i]);
  }
  if (next == infinity) throw std::logic_error("the graph is stuck");
  now_ += next;
  ++round_;
  for (std::size_t i = 0; i < busy.size(); ++i) {
    const std::uint32_t a = busy[i];
    left_[a] -= next * rates[i];
    if (left_[a] > same * now_ * rates[i]) continue;
    if (stages_[a] == Stage::latency && graph_.activities[a].amount > 0) {
      begin_stage(a, Stage::work);
    } else {
      end(a);
    }
  }
}

std::vector<PlainTimes> Plain::run() {
  start_what_can();
  while (std::any_of(stages_.begin(), stages_.end(), [](Stage s) { return s != Stage::ended; })) {
    step();
    start_what_can();
  }
  return times_;
}

}  // namespace

std::vector<PlainTimes> brute_force(const ActivityGraph& graph) { return Plain(graph).run(); }

std::vector<long double> water_fill(const ActivityGraph& graph,
                                    const std::vector<std::uint32_t>& demands) {
  std::vector<long double> rates(demands.size(), 0), left;
  std::vector<char> rises(demands.size(), 1);
  for (const Resource& resource : graph.resources) left.push_back(resource.capacity);
  for (;;) {
    // How far all that rise can rise before the first resource or cap stops some of them.
    std::vector<long double> slope(graph.resources.size(), 0);
    long double rise = infinity;
    for (std::size_t i = 0; i < demands.size(); ++i) {
      const Demand& demand = graph.demands[demands[i]];
      if (!rises[i]) continue;
      rise = std::min(rise, (demand.rate_cap - rates[i]) / demand.weight);
      for (const Usage& usage : demand.usages)
        slope[usage.resource] += static_cast<long double>(demand.weight) * usage.per_unit;
    }
    for (std::size_t r = 0; r < left.size(); ++r) {
      if (slope[r] > 0) rise = std::min(rise, left[r] / slope[r]);
    }
    if (rise == infinity) return rates;  // nothing rises any more
    for (std::size_t r = 0; r < left.size(); ++r) left[r] -= rise * slope[r];
    for (std::size_t i = 0; i < demands.size(); ++i) {
      const Demand& demand = graph.demands[demands[i]];
      if (!rises[i]) continue;
      rates[i] += rise * demand.weight;
      rises[i] = rates[i] < demand.rate_cap * (1 - same);
      for (const Usage& usage : demand.usages) {
        if (left[usage.resource] <= same * graph.resources[usage.resource].capacity) rises[i] = 0;
      }
    }
  }
}

}  // namespace spillway::test
