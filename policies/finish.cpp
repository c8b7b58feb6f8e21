// Program::finish: one sweep in program order that plans memory and derives dependencies.
#include <algorithm>

#include "base/errors.hpp"
#include "policies/access_history.hpp"
#include "policies/memory_planner.hpp"
#include "policies/program.hpp"
#include "policies/schedule_data.hpp"

namespace spillway {

namespace {

constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }
constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }

// Offsets for all buffers, in program order. Steps are alike: a buffer goes where the same one of
// the step before was, if it can, so that memory does not creep up from step to step.
class Planner {
 public:
  explicit Planner(std::vector<BufferInfo>& buffers) : buffers_(buffers) {
    for (BufferInfo& buffer : buffers_) {
      if (buffer.persistent) place(buffer);
    }
  }

  void begin_step(int step) {
    if (step == step_) return;
    step_ = step;
    for (auto& tier : placed_) {
      tier.before = std::move(tier.now);
      tier.now.clear();
    }
  }
  void begin(BufferId id, TaskId task) {
    BufferInfo& buffer = buffers_[id];
    if (buffer.persistent || buffer.first_use != task) return;
    Placed& placed = placed_[index_of(buffer.tier)];
    const std::size_t at = placed.now.size();
    const BufferInfo* const alike =
        at < placed.before.size() ? &buffers_[placed.before[at]] : nullptr;
    const bool same = alike && alike->bytes == buffer.bytes && alike->kind == buffer.kind;
    if (same && tiers_[index_of(buffer.tier)].allocate_at(alike->offset, buffer.bytes)) {
      buffer.offset = alike->offset;
      note_peak(buffer.tier);
    } else {
      place(buffer);
    }
    placed.now.push_back(id);
  }
  void end(BufferId id, TaskId task) {
    const BufferInfo& buffer = buffers_[id];
    if (!buffer.persistent && buffer.last_use == task) {
      tiers_[index_of(buffer.tier)].release(buffer.offset, buffer.bytes);
    }
  }
  std::uint64_t extent(Tier tier) const { return tiers_[index_of(tier)].extent(); }
  std::uint64_t live_peak(Tier tier) const { return live_peak_[index_of(tier)]; }

 private:
  void place(BufferInfo& buffer) {
    MemoryPlanner& tier = tiers_[index_of(buffer.tier)];
    buffer.offset = tier.allocate(buffer.bytes);
    note_peak(buffer.tier);
  }
  void note_peak(Tier tier) {
    std::uint64_t& peak = live_peak_[index_of(tier)];
    peak = std::max(peak, tiers_[index_of(tier)].live_bytes());
  }

  struct Placed {
    std::vector<BufferId> before, now;  // of the last step and of this one, in order
  };

  std::vector<BufferInfo>& buffers_;
  std::array<MemoryPlanner, tier_count> tiers_;
  std::array<std::uint64_t, tier_count> live_peak_{};
  std::array<Placed, tier_count> placed_;
  int step_ = 0;
};

// The buffers of one task, each once.
void distinct_buffers(std::span<const Access> accesses, std::vector<BufferId>& out) {
  out.clear();
  for (const Access& access : accesses) {
    if (std::find(out.begin(), out.end(), access.buffer) == out.end()) out.push_back(access.buffer);
  }
}

}  // namespace

Schedule Program::finish(std::string policy, int steps) && {
  auto data = std::make_shared<Schedule::Data>();
  Planner planner(buffers_);
  std::array<AccessHistory, tier_count> history;
  std::vector<std::pair<TaskId, TaskId>> edges;
  data->predecessor_counts.resize(tasks_.size(), 0);
  Predecessors last_on_lane;
  last_on_lane.fill(none);
  std::array<TaskId, lane_count> pending_barrier;
  pending_barrier.fill(none);
  std::vector<BufferId> touched;

  for (TaskId id = 0; id < tasks_.size(); ++id) {
    const Task& task = tasks_[id];
    const std::span<const Access> accesses(accesses_.data() + task.first_access, task.access_count);
    distinct_buffers(accesses, touched);
    planner.begin_step(task.step);
    for (const BufferId buffer : touched) planner.begin(buffer, id);

    Predecessors predecessors;
    predecessors.fill(none);
    for (const Access& access : accesses) {
      const BufferInfo& buffer = buffers_[access.buffer];
      const std::uint64_t begin = buffer.offset + access.offset;
      AccessHistory& tier = history[index_of(buffer.tier)];
      if (access.mode == Mode::read) {
        tier.read(begin, begin + access.bytes, id, task.lane, predecessors);
      } else {
        tier.write(begin, begin + access.bytes, id, task.lane, predecessors);
      }
    }
    if (task.kind == TaskKind::barrier) {
      for (std::size_t lane = 0; lane < predecessors.size(); ++lane) {
        if (task.waits_for.contains(static_cast<Lane>(lane)))
          predecessors[lane] = last_on_lane[lane];
        if (task.holds.contains(static_cast<Lane>(lane))) pending_barrier[lane] = id;
      }
    } else if (TaskId& barrier = pending_barrier[index_of(task.lane)]; barrier != none) {
      wait_for(predecessors, Lane::host_sync, barrier);
      barrier = none;
    }
    for (std::size_t lane = 0; lane < predecessors.size(); ++lane) {
      const TaskId before = predecessors[lane];
      if (before == none || before == id || lane == index_of(task.lane)) continue;
      edges.emplace_back(before, id);
      ++data->predecessor_counts[id];
    }
    last_on_lane[index_of(task.lane)] = id;
    for (const BufferId buffer : touched) planner.end(buffer, id);
  }

  data->graph = std::make_unique<DependencyGraph>(static_cast<std::uint32_t>(tasks_.size()), edges);
  const std::array<std::uint64_t, tier_count> capacity = {
      problem_.machine.gpu.memory, problem_.machine.host.memory, problem_.machine.ssd.capacity};
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    data->use[index_of(tier)] = {planner.extent(tier), planner.live_peak(tier),
                                 capacity[index_of(tier)]};
  }
  data->problem = std::move(problem_);
  data->policy = std::move(policy);
  data->steps = steps;
  data->tasks = std::move(tasks_);
  data->accesses = std::move(accesses_);
  data->buffers = std::move(buffers_);
  data->homes = std::move(homes_);
  return Schedule(std::move(data));
}

}  // namespace spillway
