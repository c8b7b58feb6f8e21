#include "exec/store_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

std::vector<StatePart> parts_of(const Schedule& schedule) {
  std::vector<StatePart> parts;
  for (const HomePart& home : schedule.homes()) {
    if (home.kind != BufferKind::optimizer_state) continue;
    const BufferInfo& buffer = schedule.buffers()[home.where.buffer.id];
    StatePart part;
    part.unit = home.unit;
    part.first_element = home.first_element;
    part.elements = home.elements;
    part.tier = buffer.tier;
    part.offset = buffer.offset + home.where.offset;
    SPILLWAY_ASSERT(home.where.offset == 0 && home.where.bytes == part.bytes());
    parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end(), [](const StatePart& a, const StatePart& b) {
    return std::pair(a.unit, a.first_element) < std::pair(b.unit, b.first_element);
  });
  return parts;
}

}  // namespace

StoreLayout::StoreLayout(std::span<const Schedule* const> schedules, bool durable) {
  SPILLWAY_ASSERT(!schedules.empty());
  parts_ = parts_of(*schedules[0]);
  for (const Schedule* schedule : schedules) {
    SPILLWAY_ASSERT(parts_of(*schedule) == parts_,
                    "the state rests where the first schedule has it");
    bytes_ = std::max(bytes_, schedule->use(Tier::ssd).peak_bytes);
    const auto add = [&](std::uint64_t begin, std::uint64_t bytes) {
      boundaries_.push_back(begin);
      boundaries_.push_back(begin + bytes);
    };
    for (const Task& task : schedule->tasks()) {
      if (task.kind != TaskKind::read && task.kind != TaskKind::write) continue;
      const Access& ssd = schedule->accesses(task)[task.kind == TaskKind::read ? 0 : 1];
      add(schedule->buffers()[ssd.buffer].offset + ssd.offset, task.bytes);
    }
    for (const HomePart& home : schedule->homes()) {
      const BufferInfo& buffer = schedule->buffers()[home.where.buffer.id];
      if (buffer.tier == Tier::ssd) add(buffer.offset + home.where.offset, home.where.bytes);
    }
    std::sort(boundaries_.begin(), boundaries_.end());
    boundaries_.erase(std::unique(boundaries_.begin(), boundaries_.end()), boundaries_.end());
  }
  for (StatePart& part : parts_) {
    const auto take = [&] {
      const std::uint64_t begin = bytes_;
      bytes_ += part.bytes();
      boundaries_.push_back(begin);
      return begin;
    };
    if (part.tier == Tier::ssd) {
      part.address = {part.offset, durable ? take() : part.offset};
    } else if (durable) {
      part.address = {take(), take()};
      captured_bytes_ += 2 * part.bytes();
    }
  }
}

std::vector<std::int32_t> StoreLayout::parts_by_buffer(const Schedule& schedule,
                                                       std::span<const StatePart> parts) {
  std::vector<std::int32_t> by_buffer(schedule.buffers().size(), -1);
  for (const HomePart& home : schedule.homes()) {
    if (home.kind != BufferKind::optimizer_state) continue;
    const auto key = std::pair(home.unit, home.first_element);
    const auto found =
        std::lower_bound(parts.begin(), parts.end(), key, [](const StatePart& part, const auto& k) {
          return std::pair(part.unit, part.first_element) < k;
        });
    SPILLWAY_ASSERT(found != parts.end() && found->unit == home.unit &&
                    found->first_element == home.first_element);
    by_buffer[home.where.buffer.id] = static_cast<std::int32_t>(found - parts.begin());
  }
  return by_buffer;
}

std::vector<StateAccess> state_accesses(const Schedule& schedule,
                                        std::span<const StatePart> parts) {
  const std::vector<std::int32_t> part_of = StoreLayout::parts_by_buffer(schedule, parts);
  std::vector<StateAccess> result(schedule.tasks().size());
  std::vector<std::int32_t> versions(parts.size(), 0);
  std::int32_t begun = 0;   // the latest version that a task has written a part of
  std::size_t written = 0;  // parts of that version
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
    for (const Access& access : schedule.accesses(schedule.tasks()[id])) {
      const std::int32_t part = part_of[access.buffer];
      if (part < 0) continue;
      SPILLWAY_ASSERT(result[id].part < 0, "a task touches one part of the state at rest");
      std::int32_t& version = versions[static_cast<std::size_t>(part)];
      StateAccess& state = result[id];
      state.part = part;
      state.in_memory = parts[static_cast<std::size_t>(part)].tier != Tier::ssd;
      state.writes = access.mode != Mode::read;
      if (state.writes) {
        SPILLWAY_ASSERT(
            access.offset == 0 && access.bytes == parts[static_cast<std::size_t>(part)].bytes(),
            fmt::format("{} writes a part of the optimizer state in pieces",
                        schedule.describe(id)));
        ++version;
        if (version > begun) {
          SPILLWAY_ASSERT(begun == 0 || written == parts.size(),
                          fmt::format("{} overwrites optimizer state before all of the step before "
                                      "is at rest",
                                      schedule.describe(id)));
          begun = version;
          written = 0;
        }
        ++written;
      }
      state.version = version;
    }
  }
  for (const std::int32_t version : versions) {
    SPILLWAY_ASSERT(version == schedule.steps(), "every part of the state is written once a step");
  }
  return result;
}

}  // namespace spillway
