#include "sim/sharing_losses.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

SharingLosses::SharingLosses(const Schedule& schedule, const ActivityGraph& graph,
                             std::span<const SimulatedTask> times, std::int64_t from_ns)
    : graph_(graph),
      times_(times),
      sharing_(graph.resources, graph.demands),
      lanes_(graph.lanes.size()),
      slots_(graph.lanes.size() * graph.demands.size(), none) {
  SPILLWAY_ASSERT(schedule.tasks().size() == times.size());
  for (TaskId task = 0; task < times.size(); ++task) {
    const Activity& activity = graph.activities[task];
    if (activity.amount == 0 || times[task].end_ns <= from_ns) continue;
    lanes_[activity.lane].tasks.push_back(task);
    std::uint32_t& slot = slots_[activity.lane * graph.demands.size() + activity.demand];
    if (slot != none) continue;
    slot = static_cast<std::uint32_t>(slot_demands_.size());
    slot_demands_.push_back(activity.demand);
  }
  SPILLWAY_ASSERT(slot_demands_.size() <= 64);
}

std::uint32_t SharingLosses::slot_of(TaskId task) const {
  const Activity& activity = graph_.activities[task];
  return slots_[activity.lane * graph_.demands.size() + activity.demand];
}

const SharingLosses::State& SharingLosses::state_of(std::uint64_t working) {
  const auto met = std::find_if(states_.begin(), states_.end(),
                                [&](const auto& state) { return state.first == working; });
  if (met != states_.end()) return met->second;
  return states_.emplace_back(working, solve(working)).second;
}

SharingLosses::State SharingLosses::solve(std::uint64_t working) {
  const auto for_all = [&](const auto& call) {
    for (std::uint32_t slot = 0; slot < slot_demands_.size(); ++slot) {
      if ((working >> slot & 1) != 0) call(slot, slot_demands_[slot]);
    }
  };
  for_all([&](std::uint32_t, std::uint32_t demand) { sharing_.join(demand); });
  sharing_.solve();
  std::vector<double> taken(graph_.resources.size(), 0), best(graph_.resources.size(), 0);
  for_all([&](std::uint32_t, std::uint32_t d) {
    const Demand& demand = graph_.demands[d];
    for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
      const Usage& usage = demand.usages[u];
      taken[usage.resource] += sharing_.rate(d) * usage.per_unit;
      best[usage.resource] = std::max(best[usage.resource], sharing_.rate(d) / demand.weight);
    }
  });
  State state{std::vector<double>(slot_demands_.size(), 0),
              std::vector<std::uint32_t>(slot_demands_.size(), none)};
  for_all([&](std::uint32_t slot, std::uint32_t d) {
    const Demand& demand = graph_.demands[d];
    const double share = sharing_.rate(d) / sharing_.full_rate(d);
    if (share >= 1 - 1e-9) return;
    state.loss[slot] = 1 - share;
    // Max-min fairness: it has a saturated resource of which nothing gets more, by weight. Of
    // several, the first.
    double largest = 0;
    for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
      const std::uint32_t r = demand.usages[u].resource;
      if (taken[r] < graph_.resources[r].capacity * (1 - 1e-9)) continue;
      const double part = sharing_.rate(d) / demand.weight / best[r];
      if (part <= largest * (1 + 1e-9)) continue;
      largest = part;
      state.resource[slot] = r;
    }
    if (state.resource[slot] != none) return;
    // Rates that are 20 orders of magnitude apart round: the resource that is fullest.
    double fullest = -1;
    for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
      const std::uint32_t r = demand.usages[u].resource;
      const double full = taken[r] / graph_.resources[r].capacity;
      if (!(full > fullest)) continue;
      fullest = full;
      state.resource[slot] = r;
    }
  });
  for_all([&](std::uint32_t, std::uint32_t demand) { sharing_.leave(demand); });
  return state;
}

void SharingLosses::add(TaskId task, std::int64_t begin_ns, std::int64_t end_ns,
                        std::span<double> lost_ns) {
  const auto work_begins = [&](TaskId t) {
    return std::min(times_[t].start_ns + graph_.activities[t].latency_ns, times_[t].end_ns);
  };
  if (graph_.activities[task].amount == 0) return;
  const std::uint32_t slot = slot_of(task);
  std::int64_t now = std::max(begin_ns, work_begins(task));
  while (now < end_ns) {
    std::uint64_t working = std::uint64_t{1} << slot;
    std::int64_t next = end_ns;
    for (LaneTasks& lane : lanes_) {
      while (lane.at < lane.tasks.size() && times_[lane.tasks[lane.at]].end_ns <= now) ++lane.at;
      if (lane.at == lane.tasks.size()) continue;
      const TaskId other = lane.tasks[lane.at];
      const std::int64_t begins = work_begins(other);
      if (begins <= now) working |= std::uint64_t{1} << slot_of(other);
      next = std::min(next, begins > now ? begins : times_[other].end_ns);
    }
    const State& state = state_of(working);
    if (state.resource[slot] != none)
      lost_ns[state.resource[slot]] += static_cast<double>(next - now) * state.loss[slot];
    now = next;
  }
}

}  // namespace spillway
