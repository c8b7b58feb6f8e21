#include "exec/store/store_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "policies/workload/durability.hpp"

namespace spillway {

namespace {

// Of the ssd tier, where a byte lies in the store.
std::uint64_t in_store(const FrozenFiles* frozen, std::uint64_t offset) {
  return frozen ? frozen->in_store(offset) : offset;
}

std::vector<StatePart> parts_of(const Schedule& schedule, const FrozenFiles* frozen) {
  std::vector<StatePart> parts;
  for (const HomePart& home : schedule.homes()) {
    if (home.kind != BufferKind::optimizer_state) continue;
    const BufferInfo& buffer = schedule.buffers()[home.where.buffer.id];
    StatePart part;
    part.unit = home.unit;
    part.first_element = home.first_element;
    part.elements = home.elements;
    part.moments = schedule.problem().workload.moments;
    part.tier = buffer.tier;
    part.offset = buffer.offset + home.where.offset;
    if (part.tier == Tier::ssd) part.offset = in_store(frozen, part.offset);  // the first set's
    SPILLWAY_ASSERT(home.where.bytes == part.bytes());
    parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end(), [](const StatePart& a, const StatePart& b) {
    return std::pair(a.unit, a.first_element) < std::pair(b.unit, b.first_element);
  });
  return parts;
}

}  // namespace

StoreLayout::StoreLayout(std::span<const Schedule* const> schedules, bool durable,
                         const FrozenFiles* frozen) {
  SPILLWAY_ASSERT(!schedules.empty());
  parts_ = parts_of(*schedules[0], frozen);
  for (const Schedule* schedule : schedules) {
    SPILLWAY_ASSERT(parts_of(*schedule, frozen) == parts_,
                    "the state rests where the first schedule has it");
    SPILLWAY_ASSERT(schedule->use(Tier::ssd).in_place_bytes == (frozen ? frozen->bytes() : 0));
  }
  for (int set = 0; set < most_drive_sets; ++set) add_set(set, schedules, durable, frozen);
  std::sort(boundaries_.begin(), boundaries_.end());
  boundaries_.erase(std::unique(boundaries_.begin(), boundaries_.end()), boundaries_.end());
  // What predictions say of space and writes.
  const StoreBytes predicted = store_bytes(schedules, durable);
  SPILLWAY_ASSERT(bytes_ == predicted.address_space() &&
                  captured_bytes_ == predicted.memory_copies);
}

// A set of drives: what the schedules have there, then copies; with the first set of what rests in
// memory, too.
void StoreLayout::add_set(int set, std::span<const Schedule* const> schedules, bool durable,
                          const FrozenFiles* frozen) {
  const Tier tier = drives_tier(set);
  const std::uint64_t begin = begins_[static_cast<std::size_t>(set)] = bytes_;
  const FrozenFiles* const in_files = set == 0 ? frozen : nullptr;
  std::uint64_t most = 0;
  std::vector<std::uint64_t> cuts;
  for (const Schedule* schedule : schedules) {
    most = std::max(most, schedule->use(tier).peak_bytes);
    const auto add = [&](std::uint64_t at, std::uint64_t bytes) {
      if (in_files && in_files->holds(at)) return;
      cuts.push_back(begin + in_store(in_files, at));
      cuts.push_back(begin + in_store(in_files, at) + bytes);
    };
    for (const Task& task : schedule->tasks()) {
      if (task.kind != TaskKind::read && task.kind != TaskKind::write) continue;
      const Access& ssd = schedule->accesses(task)[task.kind == TaskKind::read ? 0 : 1];
      const BufferInfo& buffer = schedule->buffers()[ssd.buffer];
      if (buffer.tier == tier) add(buffer.offset + ssd.offset, task.bytes);
    }
    for (const HomePart& home : schedule->homes()) {
      const BufferInfo& buffer = schedule->buffers()[home.where.buffer.id];
      if (buffer.tier == tier) add(buffer.offset + home.where.offset, home.where.bytes);
    }
  }
  if (begin > 0) cuts.push_back(begin);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  boundaries_.insert(boundaries_.end(), cuts.begin(), cuts.end());
  bytes_ += most;
  // Parts that share a buffer follow each other in every copy, so that one transfer can cover them.
  std::vector<StatePart*> by_offset;
  for (StatePart& part : parts_) {
    if (part.tier == tier || (set == 0 && !is_drives(part.tier))) by_offset.push_back(&part);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const StatePart* a, const StatePart* b) {
    return std::pair(a->tier, a->offset) < std::pair(b->tier, b->offset);
  });
  for (const std::size_t copy : {0u, 1u}) {
    for (StatePart* const part : by_offset) {
      const bool on_ssd = is_drives(part->tier);
      const std::uint64_t first = begin + part->offset;
      if (on_ssd) boundaries_.push_back(first);
      if (on_ssd && (copy == 0 || !durable)) {
        part->address[copy] = first;
      } else if (durable) {
        part->address[copy] = bytes_;
        boundaries_.push_back(bytes_);
        // A part that is read in pieces is cut alike in both copies.
        auto cut = std::upper_bound(cuts.begin(), cuts.end(), first);
        for (; on_ssd && cut != cuts.end() && *cut < first + part->bytes(); ++cut) {
          boundaries_.push_back(bytes_ + *cut - first);
        }
        bytes_ += part->bytes();
        if (!on_ssd) captured_bytes_ += part->bytes();
      }
    }
  }
}

std::vector<std::int32_t> parts_of_homes(const Schedule& schedule,
                                         std::span<const StatePart> parts) {
  std::vector<std::int32_t> result;
  for (const HomePart& home : schedule.homes()) {
    result.push_back(-1);
    if (home.kind != BufferKind::optimizer_state || parts.empty()) continue;
    const auto key = std::pair(home.unit, home.first_element);
    const auto found =
        std::lower_bound(parts.begin(), parts.end(), key, [](const StatePart& part, const auto& k) {
          return std::pair(part.unit, part.first_element) < k;
        });
    SPILLWAY_ASSERT(found != parts.end() && found->unit == home.unit &&
                    found->first_element == home.first_element);
    result.back() = static_cast<std::int32_t>(found - parts.begin());
  }
  return result;
}

namespace {

// The parts that share a buffer, in order, with their places in it.
struct PlacedPart {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::int32_t part = -1;
};

std::vector<std::vector<PlacedPart>> parts_by_buffer(const Schedule& schedule,
                                                     std::span<const StatePart> parts) {
  const std::vector<std::int32_t> part_of = parts_of_homes(schedule, parts);
  std::vector<std::vector<PlacedPart>> result(schedule.buffers().size());
  for (std::size_t i = 0; i < part_of.size(); ++i) {
    const HomePart& home = schedule.homes()[i];
    if (part_of[i] < 0) continue;
    result[home.where.buffer.id].push_back({home.where.offset, home.where.bytes, part_of[i]});
  }
  for (auto& one : result) {
    std::sort(one.begin(), one.end(),
              [](const PlacedPart& a, const PlacedPart& b) { return a.offset < b.offset; });
  }
  return result;
}

// Follows a schedule in program order and counts the versions that its tasks make.
class VersionCount {
 public:
  VersionCount(const Schedule& schedule, std::span<const StatePart> parts)
      : schedule_(schedule),
        parts_(parts),
        placed_(parts_by_buffer(schedule, parts)),
        versions_(parts.size(), 0) {}

  void take(TaskId id, const Access& access, StateAccess& state) {
    const std::vector<PlacedPart>& placed = placed_[access.buffer];
    if (placed.empty()) return;
    SPILLWAY_ASSERT(state.part < 0, "a task touches one buffer of state at rest");
    auto first = std::upper_bound(
        placed.begin(), placed.end(), access.offset,
        [](std::uint64_t offset, const PlacedPart& part) { return offset < part.offset; });
    SPILLWAY_ASSERT(first != placed.begin());
    --first;
    state.part = first->part;
    state.into = access.offset - first->offset;
    state.in_memory = parts_[static_cast<std::size_t>(first->part)].tier < Tier::ssd;
    const std::uint64_t end = access.offset + access.bytes;
    for (auto part = first; part != placed.end() && part->offset < end; ++part) {
      std::int32_t& version = versions_[static_cast<std::size_t>(part->part)];
      if (access.mode != Mode::read) {
        SPILLWAY_ASSERT(part->offset >= access.offset && part->offset + part->bytes <= end,
                        fmt::format("{} writes a part of the optimizer state in pieces",
                                    schedule_.describe(id)));
        write(id, ++version);
        ++state.writes;
      }
      SPILLWAY_ASSERT(part == first || version == state.version,
                      "what is moved together is of one version");
      state.version = version;
    }
  }

  void finish() const {
    for (const std::int32_t version : versions_) {
      SPILLWAY_ASSERT(version == schedule_.steps(),
                      "every part of the state is written once a step");
    }
  }

 private:
  void write(TaskId id, std::int32_t version) {
    if (version > begun_) {
      SPILLWAY_ASSERT(begun_ == 0 || written_ == parts_.size(),
                      fmt::format("{} overwrites optimizer state before all of the step before is "
                                  "at rest",
                                  schedule_.describe(id)));
      begun_ = version;
      written_ = 0;
    }
    ++written_;
  }

  const Schedule& schedule_;
  std::span<const StatePart> parts_;
  std::vector<std::vector<PlacedPart>> placed_;  // by buffer
  std::vector<std::int32_t> versions_;           // by part: how often it was written
  std::int32_t begun_ = 0;                       // the latest version that was
  std::size_t written_ = 0;                      // parts of it
};

}  // namespace

std::vector<StateAccess> state_accesses(const Schedule& schedule,
                                        std::span<const StatePart> parts) {
  std::vector<StateAccess> result(schedule.tasks().size());
  VersionCount count(schedule, parts);
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
    for (const Access& access : schedule.accesses(schedule.tasks()[id]))
      count.take(id, access, result[id]);
  }
  count.finish();
  return result;
}

}  // namespace spillway
