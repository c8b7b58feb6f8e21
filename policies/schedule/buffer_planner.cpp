#include "policies/schedule/buffer_planner.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "policies/schedule/packing.hpp"

namespace spillway {

namespace {

constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }

// Model states on their way come and go in a few sizes, turn by turn, and what lasts longer and is
// of other sizes can cut their memory to pieces. So both are tried: all of a tier from its
// beginning, or model states on their way from its end.
enum class Layout : std::uint8_t { from_beginning, from_both_ends };
constexpr std::size_t ends = 2;

// Offsets that buffers have beforehand, above the persistent ones, in the tiers that have an
// extent.
struct Packed {
  static constexpr std::uint64_t nowhere = 0xffffffffffffffff;
  TierBytes extent{};
  std::vector<std::uint64_t> offsets;  // by buffer; empty: none
};

class BufferPlanner {
 public:
  BufferPlanner(std::vector<BufferInfo>& buffers, Layout layout, const Packed& packed)
      : buffers_(buffers),
        layout_(layout),
        packed_(packed),
        blocks_(buffers.size(), MemoryPlanner::no_block) {
    for (BufferId id = 0; id < buffers_.size(); ++id) {
      if (buffers_[id].persistent) place(id);
    }
    for (std::size_t tier = 0; tier < tier_count; ++tier) {
      MemoryPlanner& memory = from_end_[tier * ends];
      if (packed.extent[tier] > memory.extent())
        memory.release(memory.allocate(packed.extent[tier] - memory.extent()));
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
    const BufferInfo& buffer = buffers_[id];
    Placed& placed = placed_[end_of(buffer)];
    const std::size_t at = placed.now.size();
    placed.now.push_back(id);
    const BufferId before = at < placed.before.size() ? placed.before[at] : id;
    const bool is_alike = before != id && buffers_[before].bytes == buffer.bytes &&
                          buffers_[before].kind == buffer.kind;
    const MemoryPlanner::Block hint = is_alike ? blocks_[before] : MemoryPlanner::no_block;
    if (!packed_.offsets.empty() && packed_.offsets[id] != Packed::nowhere &&
        place_at(id, packed_.offsets[id], hint))
      return;
    if (!is_alike || !place_at(id, buffers_[before].offset, hint)) place(id);
  }

  // Its last task.
  void end(BufferId id) {
    const BufferInfo& buffer = buffers_[id];
    from_end_[end_of(buffer)].release(blocks_[id]);
  }

  bool is_placed(BufferId id) const { return blocks_[id] != MemoryPlanner::no_block; }

  MemoryPlan plan() && {
    MemoryUse use;
    for (std::size_t tier = 0; tier < tier_count; ++tier) {
      use.extent[tier] = extent_[tier];
      for (std::size_t end = 0; end < ends; ++end)
        use.operations += from_end_[tier * ends + end].operations();
    }
    for (BufferId id = 0; id < buffers_.size(); ++id) {
      if (!is_placed(id)) continue;
      const std::size_t end = end_of(buffers_[id]);
      if (end % ends != 0)  // counted from the end
        buffers_[id].offset = extent_[end / ends] - buffers_[id].offset - buffers_[id].bytes;
      blocks_[id] = static_cast<MemoryPlanner::Block>(blocks_[id] * ends + end % ends);
    }
    use.live_peak = live_peak_;
    return {use, std::move(blocks_)};
  }

 private:
  void place(BufferId id) {
    BufferInfo& buffer = buffers_[id];
    MemoryPlanner& tier = from_end_[end_of(buffer)];
    blocks_[id] = tier.allocate(buffer.bytes);
    buffer.offset = tier.offset(blocks_[id]);
    note_peak(buffer.tier);
  }
  // False where not all of those bytes are free.
  bool place_at(BufferId id, std::uint64_t offset, MemoryPlanner::Block hint) {
    BufferInfo& buffer = buffers_[id];
    blocks_[id] = from_end_[end_of(buffer)].allocate_at(offset, buffer.bytes, hint);
    if (blocks_[id] == MemoryPlanner::no_block) return false;
    buffer.offset = offset;
    note_peak(buffer.tier);
    return true;
  }
  void note_peak(Tier tier) {
    std::uint64_t& peak = live_peak_[index_of(tier)];
    peak = std::max(peak, from_end_[index_of(tier) * ends].live_bytes() +
                              from_end_[index_of(tier) * ends + 1].live_bytes());
    std::uint64_t& extent = extent_[index_of(tier)];
    extent = std::max(extent, from_end_[index_of(tier) * ends].top() +
                                  from_end_[index_of(tier) * ends + 1].top());
  }

  // Which end of which tier a buffer is placed from.
  std::size_t end_of(const BufferInfo& buffer) const {
    const bool on_its_way = !buffer.persistent && (buffer.kind == BufferKind::parameters ||
                                                   buffer.kind == BufferKind::optimizer_state);
    return index_of(buffer.tier) * ends + (on_its_way && layout_ == Layout::from_both_ends ? 1 : 0);
  }

  struct Placed {
    std::vector<BufferId> before, now;  // of the last step and of this one, in order
  };

  std::vector<BufferInfo>& buffers_;
  Layout layout_;
  const Packed& packed_;
  std::vector<MemoryPlanner::Block> blocks_;  // by buffer
  std::array<MemoryPlanner, tier_count * ends> from_end_;
  TierBytes live_peak_{}, extent_{};
  std::array<Placed, tier_count * ends> placed_;
  int step_ = 0;
};

// A transient buffer begins or ends, or a step begins, in program order.
struct Event {
  enum class What : std::uint8_t { step, begin, end };
  What what = What::step;
  std::uint32_t of = 0;  // the buffer; the step
};

std::vector<Event> events_of(std::span<const Task> tasks, std::span<const Access> accesses,
                             std::span<const BufferInfo> buffers) {
  std::vector<Event> events;
  events.reserve(2 * buffers.size() + 16);
  std::vector<bool> has_begun(buffers.size(), false);
  int step = 0;
  for (TaskId id = 0; id < tasks.size(); ++id) {
    const auto touched = accesses.subspan(tasks[id].first_access, tasks[id].access_count);
    if (tasks[id].step != step)
      events.push_back({Event::What::step, static_cast<std::uint32_t>(tasks[id].step)});
    step = tasks[id].step;
    for (const Access& access : touched) {
      const BufferInfo& buffer = buffers[access.buffer];
      if (buffer.first_use != id || buffer.persistent || has_begun[access.buffer]) continue;
      has_begun[access.buffer] = true;
      events.push_back({Event::What::begin, access.buffer});
    }
    for (std::size_t a = 0; a < touched.size(); ++a) {
      const BufferInfo& buffer = buffers[touched[a].buffer];
      if (buffer.last_use != id || buffer.persistent) continue;
      const auto is_it = [&](const Access& access) { return access.buffer == touched[a].buffer; };
      const auto earlier = touched.first(a);
      if (std::none_of(earlier.begin(), earlier.end(), is_it))
        events.push_back({Event::What::end, touched[a].buffer});
    }
  }
  return events;
}

MemoryPlan plan_memory(std::span<const Event> events, std::vector<BufferInfo>& buffers,
                       Layout layout, const Packed& packed = {}) {
  BufferPlanner planner(buffers, layout, packed);
  for (const Event& event : events) {
    switch (event.what) {
      case Event::What::step:
        planner.begin_step(static_cast<int>(event.of));
        break;
      case Event::What::begin:
        planner.begin(event.of);
        break;
      case Event::What::end:
        planner.end(event.of);
        break;
    }
  }
  return std::move(planner).plan();
}

// The transient buffers of a tier that begin in the first steps. Two steps and what surrounds them
// are enough: the buffers of the others go where the same ones of the step before are.
constexpr int steps_packed = 3;

struct TierBuffers {
  std::uint64_t persistent = 0;  // bytes
  std::vector<BufferId> ids;
  std::vector<Lifetime> lifetimes;
};

TierBuffers buffers_of(std::size_t tier, std::span<const Task> tasks,
                       std::span<const BufferInfo> buffers) {
  TierBuffers all;
  const auto lifetime = [&](BufferId id) {
    const BufferInfo& buffer = buffers[id];
    return Lifetime{buffer.bytes,
                    buffer.first_use,
                    buffer.last_use,
                    tasks[buffer.first_use].lane,
                    tasks[buffer.last_use].lane,
                    0};
  };
  for (BufferId id = 0; id < buffers.size(); ++id) {
    const BufferInfo& buffer = buffers[id];
    if (index_of(buffer.tier) != tier) continue;
    if (buffer.persistent) all.persistent += buffer.bytes;
    if (buffer.persistent || buffer.first_use == none) continue;
    if (tasks[buffer.first_use].step < steps_packed) all.ids.push_back(id);
  }
  std::stable_sort(all.ids.begin(), all.ids.end(), [&](BufferId a, BufferId b) {
    return is_placed_before(lifetime(a), lifetime(b));
  });
  for (const BufferId id : all.ids) all.lifetimes.push_back(lifetime(id));
  return all;
}

// Packs a tier into `most` bytes, with as long between two uses of its memory as that allows but
// between `at_least` and `at_most` tasks.
std::optional<std::uint64_t> pack_into(TierBuffers& all, std::uint64_t most, TaskId at_least,
                                       TaskId at_most) {
  for (const TaskId distance : {64u, 16u, 4u, 2u, 0u}) {
    if (distance < at_least) break;
    if (distance > at_most) continue;
    const std::uint64_t left = most - std::min(most, all.persistent);
    const std::optional<std::uint64_t> extent =
        pack(all.lifetimes, distance, distance == 0 ? no_limit : left);
    if (extent) return extent;
  }
  return std::nullopt;
}

// Packs the first steps in the tiers where that takes less than the layout in `use`: where the
// layout fits into memory, by a 64th at least, on the GPU a 32nd; into memory where it does not.
// Copies to and from the GPU go in small pieces under every visit: there a tight layout costs time.
// `at_most`: tasks between two uses of memory.
Packed pack_first_steps(std::span<const Task> tasks, std::span<const BufferInfo> buffers,
                        const MemoryUse& use, const TierBytes& capacity, TaskId at_most) {
  Packed packed;
  for (std::size_t tier = 0; tier < tier_count; ++tier) {
    if (use.extent[tier] == 0) continue;
    const bool fits = use.extent[tier] <= capacity[tier];
    const std::uint64_t part = tier == index_of(Tier::gpu) ? 32 : 64;
    const std::uint64_t most = fits ? use.extent[tier] - use.extent[tier] / part : capacity[tier];
    if (use.live_peak[tier] > most && (fits || at_most > 0)) continue;
    TierBuffers all = buffers_of(tier, tasks, buffers);
    const std::optional<std::uint64_t> extent = pack_into(all, most, fits ? 2 : 0, at_most);
    if (!extent) continue;
    packed.extent[tier] = all.persistent + *extent;
    packed.offsets.resize(buffers.size(), Packed::nowhere);
    for (std::size_t k = 0; k < all.ids.size(); ++k)
      packed.offsets[all.ids[k]] = all.persistent + all.lifetimes[k].offset;
  }
  return packed;
}

// Takes the layout of `other` in the tiers where that is smaller.
void take_smaller(MemoryPlan& plan, std::vector<BufferInfo>& buffers, const MemoryPlan& other,
                  std::span<const BufferInfo> others) {
  plan.use.operations += other.use.operations;
  std::array<bool, tier_count> is_smaller{};
  for (std::size_t tier = 0; tier < tier_count; ++tier) {
    is_smaller[tier] = other.use.extent[tier] < plan.use.extent[tier];
    if (is_smaller[tier]) plan.use.extent[tier] = other.use.extent[tier];
  }
  for (BufferId id = 0; id < buffers.size(); ++id) {
    if (!is_smaller[index_of(buffers[id].tier)]) continue;
    buffers[id].offset = others[id].offset;
    plan.blocks[id] = other.blocks[id];
  }
}

}  // namespace

MemoryPlan plan_memory(std::span<const Task> tasks, std::span<const Access> accesses,
                       std::vector<BufferInfo>& buffers, const TierBytes& capacity) {
  const std::vector<Event> events = events_of(tasks, accesses, buffers);
  MemoryPlan plan = plan_memory(events, buffers, Layout::from_beginning);
  plan.use.first_extent = plan.use.extent;
  // Hardly anything is lost between buffers.
  const auto is_tight = [&](std::size_t tier) {
    return plan.use.extent[tier] - plan.use.live_peak[tier] <= plan.use.live_peak[tier] / 256;
  };
  const auto all_tiers = [](const auto& holds) {
    for (std::size_t tier = 0; tier < tier_count; ++tier) {
      if (!holds(tier)) return false;
    }
    return true;
  };
  if (all_tiers(is_tight)) return plan;
  std::vector<BufferInfo> others = buffers;
  take_smaller(plan, buffers, plan_memory(events, others, Layout::from_both_ends), others);
  const auto fits = [&](std::size_t tier) { return plan.use.extent[tier] <= capacity[tier]; };
  // What comes after the first steps may not fit where they do: then they are packed tightest.
  for (const TaskId at_most : {64u, 0u}) {
    if (at_most == 0 && all_tiers(fits)) break;
    const Packed packed = pack_first_steps(tasks, buffers, plan.use, capacity, at_most);
    if (packed.offsets.empty()) continue;
    take_smaller(plan, buffers, plan_memory(events, others, Layout::from_beginning, packed),
                 others);
  }
  return plan;
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
