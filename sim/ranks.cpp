#include "sim/ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "base/errors.hpp"
#include "policies/schedule/messages.hpp"
#include "sim/activity_graph.hpp"
#include "sim/costed_schedule.hpp"
#include "sim/steady_state.hpp"

namespace spillway {

namespace {

enum class Owner { rank, pcie_switch, node, leaf };

// Who has one of a resource of Costs.
Owner owner_of(const std::string& resource) {
  if (resource == "spine") return Owner::leaf;
  if (resource.rfind("switch.", 0) == 0) return Owner::pcie_switch;
  const bool is_of_node = resource == "cores" || resource == "dram" || resource == "io" ||
                          resource == "nic" || resource.rfind("ssd", 0) == 0;
  return is_of_node ? Owner::node : Owner::rank;
}

// Whether a rank alone may do what is on that lane as fast as the whole node does.
bool is_of_node(Lane lane) { return lane == Lane::cpu_optimizer || is_drive_lane(lane); }

// Whether a task runs together with tasks of other ranks.
bool meets_others(const Task& task) { return is_collective(task.kind) || is_message(task.kind); }

// The graphs of all ranks, or stages of a pipeline, as one. A task is an activity, a collective or
// message three: its arrival, its work, and its end.
class JointGraph {
 public:
  JointGraph(std::span<const Schedule> schedules, std::span<const CostedSchedule> costed)
      : schedules_(schedules),
        costed_(costed),
        problem_(schedules.front().problem()),
        ranks_(problem_.workload.pipeline > 1 ? problem_.stages() : problem_.ranks()),
        first_(schedules.size()) {
    for (int rank = 0; rank < static_cast<int>(schedules_.size()); ++rank) {
      const auto demands = static_cast<std::uint32_t>(graph_.demands.size());
      first_demand_.push_back(demands);
      add_resources_and_demands(rank);
      add_lanes(rank);
    }
    add_activities();
    for (int rank = 0; rank < static_cast<int>(schedules_.size()); ++rank) add_edges(rank);
    add_meetings();
    add_messages();
    list_edges(graph_, edges_);
    graph_.describe = [this](std::uint32_t activity) {
      const auto& [rank, task] = task_of_[activity];
      return fmt::format("rank {}: {}", rank,
                         schedules_[static_cast<std::size_t>(rank)].describe(task));
    };
  }

  const ActivityGraph& graph() const { return graph_; }
  // Of a task: from when it, or its rank at a collective, is there.
  SimulatedTask times_of(const std::vector<ActivityTimes>& times, std::size_t rank,
                         TaskId task) const {
    const std::uint32_t first = first_[rank][task];
    const std::uint32_t last = first + (meets_others(tasks(rank)[task]) ? 2 : 0);
    return {times[first].start_ns, times[last].end_ns};
  }

 private:
  std::span<const Task> tasks(std::size_t rank) const { return schedules_[rank].tasks(); }
  const ActivityGraph& of(std::size_t rank) const { return costed_[rank].graph; }
  double sharing() const { return static_cast<double>(problem_.machine.cluster.sharing); }

  // Which of the owners of its kind.
  std::int64_t index_of(Owner owner, int rank) const {
    const Machine::Cluster& cluster = problem_.machine.cluster;
    const std::int64_t node = rank / ranks_.inside;
    switch (owner) {
      case Owner::rank:
        return rank;
      case Owner::pcie_switch:
        return node * ranks_.inside + rank % ranks_.inside / cluster.switch_gpus;
      case Owner::node:
        return node;
      case Owner::leaf:
        return node / std::max<std::int64_t>(1, cluster.leaf_nodes);
    }
    SPILLWAY_ASSERT(false);
  }
  // How many ranks' parts an owner has.
  double parts(Owner owner) const {
    if (owner == Owner::rank) return 1;
    if (owner == Owner::pcie_switch)
      return static_cast<double>(problem_.machine.cluster.ranks_of_switch());
    const std::int64_t leaf_nodes = std::max<std::int64_t>(1, problem_.machine.cluster.leaf_nodes);
    return owner == Owner::node ? sharing() : sharing() * static_cast<double>(leaf_nodes);
  }

  std::uint32_t resource(Owner owner, int rank, const std::string& name, double of_rank) {
    const auto [known, is_new] =
        resources_.try_emplace(std::pair(name, index_of(owner, rank)),
                               static_cast<std::uint32_t>(graph_.resources.size()));
    if (is_new)
      graph_.resources.push_back(
          {fmt::format("{} {}", name, known->first.second), of_rank * parts(owner)});
    return known->second;
  }

  void add_resources_and_demands(int rank) {
    const ActivityGraph& from = of(static_cast<std::size_t>(rank));
    std::vector<Lane> lane_of(from.demands.size(), Lane::gpu_compute);
    for (const Activity& activity : from.activities) {
      if (activity.amount > 0) lane_of[activity.demand] = static_cast<Lane>(activity.lane);
    }
    for (std::size_t d = 0; d < from.demands.size(); ++d) {
      const Demand& one = from.demands[d];
      Demand demand;
      demand.weight = one.weight;
      demand.rate_cap = one.rate_cap * (is_of_node(lane_of[d]) ? sharing() : 1);
      for (std::uint32_t u = 0; u < one.usage_count; ++u) {
        const Resource& used = from.resources[one.usages[u].resource];
        demand.uses(resource(owner_of(used.name), rank, used.name, used.capacity),
                    one.usages[u].per_unit);
      }
      // The node's threads of the optimizer, in seconds of a rank's share of them.
      if (lane_of[d] == Lane::cpu_optimizer)
        demand.uses(resource(Owner::node, rank, to_string(Lane::cpu_optimizer), 1),
                    1 / one.rate_cap);
      graph_.demands.push_back(std::move(demand));
    }
  }

  void add_lanes(int rank) {
    for (const LaneSpec& lane : of(static_cast<std::size_t>(rank)).lanes)
      graph_.lanes.push_back({fmt::format("{} of rank {}", lane.name, rank), lane.order, 1});
  }

  // In program order, and ranks side by side, so that what happens at once is handled alike.
  void add_activities() {
    std::size_t most = 0;
    for (const Schedule& schedule : schedules_) most = std::max(most, schedule.tasks().size());
    for (std::size_t task = 0; task < most; ++task) {
      for (std::size_t rank = 0; rank < schedules_.size(); ++rank) {
        if (task >= tasks(rank).size()) continue;
        Activity activity = of(rank).activities[task];
        activity.lane += static_cast<std::uint32_t>(rank * of(rank).lanes.size());
        activity.demand += first_demand_[rank];
        first_[rank].push_back(static_cast<std::uint32_t>(graph_.activities.size()));
        const bool meets = meets_others(tasks(rank)[task]);
        const Activity moment{activity.lane, activity.demand, 0, 0};
        if (meets) add(moment, rank, task);
        add(activity, rank, task);
        if (meets) add(moment, rank, task);
      }
    }
  }
  void add(const Activity& activity, std::size_t rank, std::size_t task) {
    graph_.activities.push_back(activity);
    task_of_.emplace_back(static_cast<int>(rank), static_cast<TaskId>(task));
  }

  std::uint32_t last_of(std::size_t rank, TaskId task) const {
    return first_[rank][task] + (meets_others(tasks(rank)[task]) ? 2 : 0);
  }
  void add_edges(int of_rank) {
    const auto rank = static_cast<std::size_t>(of_rank);
    for (TaskId task = 0; task < tasks(rank).size(); ++task) {
      for (const TaskId next : schedules_[rank].successors(task))
        edges_.emplace_back(last_of(rank, task), first_[rank][next]);
    }
  }

  // The n-th collective of a group in a lane is the n-th on all of its ranks.
  void add_meetings() {
    using Place = std::pair<std::pair<Lane, std::vector<int>>, std::size_t>;
    std::map<Place, std::vector<std::pair<std::size_t, TaskId>>> meetings;
    for (std::size_t rank = 0; rank < schedules_.size(); ++rank) {
      std::vector<std::vector<int>> members;
      for (const RankGroup& group : schedules_[rank].groups())
        members.push_back(problem_.workload.pipeline > 1
                              ? all_stages()
                              : members_of(group, ranks_, static_cast<int>(rank)));
      std::map<std::pair<Lane, std::vector<int>>, std::size_t> met;
      for (TaskId task = 0; task < tasks(rank).size(); ++task) {
        const Task& one = tasks(rank)[task];
        if (!is_collective(one.kind)) continue;
        const std::pair who{one.lane, members[one.group]};
        meetings[{who, met[who]++}].emplace_back(rank, task);
      }
    }
    for (const auto& [place, there] : meetings) {
      const std::vector<int>& group = place.first.second;
      const auto& [rank, task] = there.front();
      if (there.size() != group.size())
        throw InputError(fmt::format("{} of rank {} waits for ranks that have no such collective",
                                     schedules_[rank].describe(task), rank),
                         "all ranks of a problem have schedules of one policy");
      meet(there);
    }
  }
  // Collectives of a pipeline are of all of its stages.
  std::vector<int> all_stages() const {
    std::vector<int> all(schedules_.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  void meet(const std::vector<std::pair<std::size_t, TaskId>>& there) {
    for (const auto& [from, its] : there) {
      for (const auto& [to, theirs] : there) {
        if (from == to) continue;
        edges_.emplace_back(first_[from][its], first_[to][theirs] + 1);
        edges_.emplace_back(first_[from][its] + 1, last_of(to, theirs));
      }
    }
  }

  // The n-th that a stage sends to another on a lane is the n-th that this one receives from it.
  void add_messages() {
    if (problem_.workload.pipeline == 1) return;
    using Way = std::tuple<Lane, std::size_t, std::size_t>;  // the sender's lane, from, to
    std::map<Way, std::vector<TaskId>> sent, received;
    for (std::size_t rank = 0; rank < schedules_.size(); ++rank) {
      for (TaskId task = 0; task < tasks(rank).size(); ++task) {
        const Task& one = tasks(rank)[task];
        const std::size_t other = one.group;
        if (one.kind == TaskKind::send) sent[{one.lane, rank, other}].push_back(task);
        if (one.kind == TaskKind::receive)
          received[{other_end(one.lane), other, rank}].push_back(task);
      }
    }
    for (const auto& [way, of_sender] : sent) {
      const auto& [lane, from, to] = way;
      const std::vector<TaskId>& of_receiver = received[way];
      SPILLWAY_ASSERT(of_sender.size() == of_receiver.size(),
                      "what a stage sends another one receives");
      for (std::size_t n = 0; n < of_sender.size(); ++n)
        meet({{from, of_sender[n]}, {to, of_receiver[n]}});
    }
  }

  std::span<const Schedule> schedules_;
  std::span<const CostedSchedule> costed_;
  const Problem& problem_;
  Ranks ranks_;
  ActivityGraph graph_;
  std::map<std::pair<std::string, std::int64_t>, std::uint32_t> resources_;
  std::vector<std::uint32_t> first_demand_;        // by rank
  std::vector<std::vector<std::uint32_t>> first_;  // by rank and task: its first activity
  std::vector<std::pair<int, TaskId>> task_of_;    // by activity
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;
};

}  // namespace

std::vector<SimulationResult> simulate_ranks(std::span<const Schedule> schedules,
                                             const Machine* machine) {
  SPILLWAY_ASSERT(!schedules.empty() &&
                  schedules.size() ==
                      static_cast<std::size_t>(schedules.front().problem().workload.processes()));
  std::vector<CostedSchedule> costed;
  std::vector<Problem> problems;
  problems.reserve(schedules.size());
  for (const Schedule& schedule : schedules) {
    problems.push_back(schedule.problem());
    if (machine) problems.back().machine = *machine;
    costed.push_back(cost_schedule(schedule, problems.back()));
  }
  const JointGraph joint(schedules, costed);
  const std::vector<ActivityTimes> times = simulate_activities(joint.graph());
  std::vector<SimulationResult> results;
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    SimulationResult result;
    result.extrapolates = costed[rank].extrapolates;
    for (TaskId task = 0; task < schedules[rank].tasks().size(); ++task)
      result.tasks.push_back(joint.times_of(times, rank, task));
    measure_steady_state(schedules[rank], costed[rank].graph, result);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace spillway
