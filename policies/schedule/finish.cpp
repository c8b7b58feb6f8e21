// Program::finish: plans memory, then derives the dependencies, each in one sweep in program order.
#include <algorithm>

#include "base/errors.hpp"
#include "policies/schedule/access_history.hpp"
#include "policies/schedule/buffer_planner.hpp"
#include "policies/schedule/caches.hpp"
#include "policies/schedule/program.hpp"
#include "policies/schedule/schedule_data.hpp"

namespace spillway {

namespace {

constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }
constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }

// Who waits for whom: the accesses in memory, the barriers, and the order of the lanes.
class Dependencies {
 public:
  Dependencies(std::span<const Access> accesses, std::span<const BufferInfo> buffers,
               std::span<const MemoryPlanner::Block> blocks, std::size_t lanes)
      : accesses_(accesses),
        buffers_(buffers),
        blocks_(blocks),
        lanes_(lanes),
        places_(buffers.size(), none) {
    last_on_lane_.fill(none);
    for (Predecessors& lane : waited_for_) lane.fill(none);
    pending_barrier_.fill(none);
  }

  // What task `id`, the next in program order, must wait for: of each other lane the latest task,
  // and not that either where an earlier task of its own lane has waited for it or a later one.
  Predecessors next(TaskId id, const Task& task) {
    Predecessors predecessors;
    predecessors.fill(none);
    for (const Access& access : accesses_.subspan(task.first_access, task.access_count)) {
      const BufferInfo& buffer = buffers_[access.buffer];
      AccessHistory& tier = tiers_[index_of(buffer.tier)];
      AccessHistory::Place& place = places_[access.buffer];
      if (place == none) place = open(tier, access.buffer);
      const std::uint64_t begin = buffer.offset + access.offset;
      if (access.mode == Mode::read) {
        tier.read(place, begin, begin + access.bytes, id, task.lane, predecessors);
      } else {
        tier.write(place, begin, begin + access.bytes, id, task.lane, predecessors);
      }
    }
    if (task.kind == TaskKind::barrier) {
      for (std::size_t lane = 0; lane < lanes_; ++lane) {
        if (task.waits_for().contains(static_cast<Lane>(lane)))
          predecessors[lane] = last_on_lane_[lane];
        if (task.holds().contains(static_cast<Lane>(lane))) pending_barrier_[lane] = id;
      }
    } else if (TaskId& barrier = pending_barrier_[index_of(task.lane)]; barrier != none) {
      wait_for(predecessors, Lane::host_sync, barrier);
      barrier = none;
    }
    const std::size_t own = index_of(task.lane);
    last_on_lane_[own] = id;
    predecessors[own] = none;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      TaskId& waited = waited_for_[own][lane];
      if (predecessors[lane] == none) continue;
      if (waited != none && predecessors[lane] <= waited) {
        predecessors[lane] = none;
      } else {
        waited = predecessors[lane];
      }
    }
    return predecessors;
  }

  std::uint64_t operations() const {
    std::uint64_t all = 0;
    for (const AccessHistory& tier : tiers_) all += tier.operations();
    return all;
  }

 private:
  AccessHistory::Place open(AccessHistory& tier, BufferId id) {
    const BufferInfo& buffer = buffers_[id];
    std::vector<AccessHistory::Place>& places = place_of_block_[index_of(buffer.tier)];
    const MemoryPlanner::Block block = blocks_[id];
    if (block >= places.size()) places.resize(std::size_t{block} + 1, none);
    places[block] = tier.open(buffer.offset, buffer.offset + buffer.bytes, places[block]);
    return places[block];
  }

  std::span<const Access> accesses_;
  std::span<const BufferInfo> buffers_;
  std::span<const MemoryPlanner::Block> blocks_;
  std::size_t lanes_;                         // that tasks may be on
  std::vector<AccessHistory::Place> places_;  // by buffer, from its first task on
  std::array<std::vector<AccessHistory::Place>, tier_count> place_of_block_;  // the last one there
  std::array<AccessHistory, tier_count> tiers_;
  std::array<Predecessors, lane_count> waited_for_;  // by lane: what its tasks so far waited for
  std::array<TaskId, lane_count> last_on_lane_;
  std::array<TaskId, lane_count> pending_barrier_;
};

}  // namespace

std::vector<Tier> memories_of(const Machine& machine) {
  std::vector<Tier> all;
  for (int tier = 0; tier < machine.memories(); ++tier) all.push_back(static_cast<Tier>(tier));
  return all;
}

std::size_t lane_count_of(const Problem& problem) {
  return static_cast<std::size_t>(lane_count_of(problem.workload.ranks, problem.workload.pipeline,
                                                problem.machine.drive_sets()));
}

TierBytes capacities(const Machine& machine) {
  TierBytes bytes{machine.gpu.memory, machine.host.memory};
  for (int set = 0; set < most_drive_sets; ++set)
    bytes[index_of(drives_tier(set))] = machine.drives(set).capacity;
  return bytes;
}

TierBytes Program::live_peaks() const {
  TierBytes bytes = spillway::live_peaks(next_task_, buffers_);
  bytes[index_of(Tier::ssd)] -= in_place_bytes();
  return bytes;
}

// Of the ssd tier: buffers of frozen homes alone, which follow one another.
std::uint64_t Program::in_place_bytes() const {
  if (!problem_.frozen_in_place) return 0;
  std::uint64_t bytes = 0;
  BufferId last = none;
  for (const HomePart& home : homes_) {
    const BufferInfo& buffer = buffers_[home.where.buffer.id];
    if (home.frozen && buffer.tier == Tier::ssd && home.where.buffer.id != last)
      bytes += buffer.bytes;
    if (home.frozen) last = home.where.buffer.id;
  }
  return bytes;
}

const MemoryUse& Program::plan_memory() {
  SPILLWAY_ASSERT(recording_ == Recording::all);
  if (plan_) return plan_->use;
  const std::size_t ssd = index_of(Tier::ssd);
  const std::uint64_t in_place = in_place_bytes();
  TierBytes capacity = capacities(problem_.machine);
  capacity[ssd] += in_place;
  plan_ = spillway::plan_memory(tasks_, accesses_, buffers_, capacity);
  plan_->use.extent[ssd] -= in_place;
  plan_->use.live_peak[ssd] -= in_place;
  plan_->use.first_extent[ssd] -= in_place;
  return plan_->use;
}

Schedule Program::finish(std::string policy, int steps, std::uint64_t tasks_of_trials) && {
  const MemoryUse use = plan_memory();
  auto data = std::make_shared<Schedule::Data>();
  const std::size_t lanes = lane_count_of(problem_);
  Dependencies dependencies(accesses_, buffers_, plan_->blocks, lanes);
  std::vector<TaskId> sources;  // of the edges into each task, task by task
  sources.reserve(tasks_.size() / 4 * 5);
  data->predecessor_counts.resize(tasks_.size(), 0);
  for (TaskId id = 0; id < tasks_.size(); ++id) {
    const Task& task = tasks_[id];
    const Predecessors predecessors = dependencies.next(id, task);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      if (predecessors[lane] == none) continue;
      sources.push_back(predecessors[lane]);
      ++data->predecessor_counts[id];
    }
  }
  data->graph = std::make_unique<DependencyGraph>(data->predecessor_counts, sources);
  if (problem_.backend() == Backend::cpu) mark_cached_operands(tasks_, accesses_, buffers_);
  const TierBytes capacity = capacities(problem_.machine);
  for (std::size_t tier = 0; tier < capacity.size(); ++tier) {
    data->use[tier] = {use.extent[tier], use.live_peak[tier], capacity[tier], kept_[tier], 0};
  }
  data->use[index_of(Tier::ssd)].in_place_bytes = in_place_bytes();
  data->first_ssd_extent = use.first_extent[index_of(Tier::ssd)];
  data->problem = std::move(problem_);
  data->policy = std::move(policy);
  data->steps = steps;
  data->evaluates = evaluates_;
  data->spare = spare_;
  data->tasks_emitted = tasks_of_trials + tasks_.size();
  data->operations = use.operations + dependencies.operations();
  data->tasks = std::move(tasks_);
  data->accesses = std::move(accesses_);
  data->buffers = std::move(buffers_);
  data->homes = std::move(homes_);
  data->groups = std::move(groups_);
  data->gradient_group = gradient_group_;
  data->gradient_meshes = meshes_;
  return Schedule(std::move(data));
}

}  // namespace spillway
