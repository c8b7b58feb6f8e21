#include "policies/schedule/buffer_planner.hpp"

#include <algorithm>
#include <utility>

namespace spillway {

namespace {

constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }

class BufferPlanner {
 public:
  explicit BufferPlanner(std::vector<BufferInfo>& buffers)
      : buffers_(buffers), blocks_(buffers.size(), MemoryPlanner::no_block) {
    for (BufferId id = 0; id < buffers_.size(); ++id) {
      if (buffers_[id].persistent) place(id);
    }
  }

  void begin_step(int step) {
    if (step == step_) return;
    step_ = step;
    for (Placed& tier : placed_) {
      tier.before.swap(tier.now);
      tier.now.clear();
    }
  }

  // The first task of a buffer.
  void begin(BufferId id) {
    BufferInfo& buffer = buffers_[id];
    Placed& placed = placed_[index_of(buffer.tier)];
    const std::size_t at = placed.now.size();
    placed.now.push_back(id);
    if (at < placed.before.size()) {
      const BufferId before = placed.before[at];
      const BufferInfo& alike = buffers_[before];
      if (alike.bytes == buffer.bytes && alike.kind == buffer.kind) {
        MemoryPlanner& tier = tiers_[index_of(buffer.tier)];
        blocks_[id] = tier.allocate_at(alike.offset, buffer.bytes, blocks_[before]);
        if (blocks_[id] != MemoryPlanner::no_block) {
          buffer.offset = alike.offset;
          note_peak(buffer.tier);
          return;
        }
      }
    }
    place(id);
  }

  // Its last task.
  void end(BufferId id) { tiers_[index_of(buffers_[id].tier)].release(blocks_[id]); }

  bool is_placed(BufferId id) const { return blocks_[id] != MemoryPlanner::no_block; }

  MemoryPlan plan() && {
    MemoryUse use;
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
      use.extent[tier] = tiers_[tier].extent();
      use.operations += tiers_[tier].operations();
    }
    use.live_peak = live_peak_;
    return {use, std::move(blocks_)};
  }

 private:
  void place(BufferId id) {
    BufferInfo& buffer = buffers_[id];
    MemoryPlanner& tier = tiers_[index_of(buffer.tier)];
    blocks_[id] = tier.allocate(buffer.bytes);
    buffer.offset = tier.offset(blocks_[id]);
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
  std::vector<MemoryPlanner::Block> blocks_;  // by buffer
  std::array<MemoryPlanner, tier_count> tiers_;
  TierBytes live_peak_{};
  std::array<Placed, tier_count> placed_;
  int step_ = 0;
};

}  // namespace

MemoryPlan plan_memory(std::span<const Task> tasks, std::span<const Access> accesses,
                       std::vector<BufferInfo>& buffers) {
  BufferPlanner planner(buffers);
  for (TaskId id = 0; id < tasks.size(); ++id) {
    const Task& task = tasks[id];
    const auto touched = accesses.subspan(task.first_access, task.access_count);
    planner.begin_step(task.step);
    for (const Access& access : touched) {
      const BufferInfo& buffer = buffers[access.buffer];
      if (buffer.first_use == id && !planner.is_placed(access.buffer)) planner.begin(access.buffer);
    }
    for (std::size_t a = 0; a < touched.size(); ++a) {
      const BufferInfo& buffer = buffers[touched[a].buffer];
      if (buffer.last_use != id || buffer.persistent) continue;
      const auto is_it = [&](const Access& access) { return access.buffer == touched[a].buffer; };
      const auto earlier = touched.first(a);
      if (std::none_of(earlier.begin(), earlier.end(), is_it)) planner.end(touched[a].buffer);
    }
  }
  return std::move(planner).plan();
}

TierBytes live_peaks(std::size_t tasks, std::span<const BufferInfo> buffers) {
  struct Change {
    std::array<std::int64_t, tier_count> bytes{};
  };
  std::vector<Change> changes(tasks + 1);
  TierBytes peaks{};
  for (const BufferInfo& buffer : buffers) {
    const std::size_t tier = index_of(buffer.tier);
    if (buffer.persistent) peaks[tier] += buffer.bytes;
    if (buffer.persistent || buffer.first_use == none) continue;
    const auto bytes = static_cast<std::int64_t>(buffer.bytes);
    changes[buffer.first_use].bytes[tier] += bytes;
    changes[std::size_t{buffer.last_use} + 1].bytes[tier] -= bytes;
  }
  TierBytes live = peaks;
  for (const Change& change : changes) {
    for (std::size_t tier = 0; tier < live.size(); ++tier) {
      live[tier] += static_cast<std::uint64_t>(change.bytes[tier]);  // modulo 2^64
      peaks[tier] = std::max(peaks[tier], live[tier]);
    }
  }
  return peaks;
}

}  // namespace spillway
