// What homes and writes to them must be in any schedule.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "policies/model/units.hpp"
#include "tests/policies/dataflow.hpp"

namespace spillway::test {

std::string find_home_error(const Schedule& schedule) {
  const Problem& problem = schedule.problem();
  std::map<std::pair<BufferKind, int>, std::map<std::uint64_t, std::uint64_t>> parts;
  for (const HomePart& home : schedule.homes()) {
    const BufferInfo& buffer = schedule.buffers()[home.where.buffer.id];
    const bool states = home.kind == BufferKind::optimizer_state;
    if (!states && home.kind != BufferKind::parameters) return "a home of something else";
    const auto trained = static_cast<std::uint64_t>(trained_elements(problem.model, home.unit));
    if (home.frozen ? home.first_element < trained : home.first_element + home.elements > trained)
      return "a home that is frozen, or not";
    if (!buffer.persistent) return "a home that does not last";
    if (home.where.bytes !=
        home.elements * (states ? problem.state_bytes() : problem.parameter_bytes()))
      return "a home of another size";
    if (home.where.offset + home.where.bytes > buffer.bytes) return "a home beyond its buffer";
    if (!parts[{home.kind, home.unit}].emplace(home.first_element, home.elements).second)
      return "two homes in one place";
  }
  for (const BufferKind kind : {BufferKind::parameters, BufferKind::optimizer_state}) {
    for (int unit = 0; unit < unit_count(problem.model); ++unit) {
      std::uint64_t next = 0;
      for (const auto& [first, elements] : parts[{kind, unit}]) {
        const auto grid = static_cast<std::uint64_t>(element_alignment);
        if (first != next || elements == 0 || elements % grid != 0) {
          return fmt::format("{} of unit {} is cut at {} + {}", to_string(kind), unit, first,
                             elements);
        }
        next += elements;
      }
      const bool states = kind == BufferKind::optimizer_state;
      if (next != static_cast<std::uint64_t>(states ? trained_elements(problem.model, unit)
                                                    : unit_elements(problem.model, unit))) {
        return fmt::format("{} of unit {} ends at {}", to_string(kind), unit, next);
      }
    }
  }
  return "";
}

std::string find_vain_write(const Schedule& schedule) {
  for (BufferId id = 0; id < schedule.buffers().size(); ++id) {
    const BufferInfo& buffer = schedule.buffers()[id];
    if (buffer.persistent || buffer.kind == BufferKind::scratch) continue;
    if (buffer.last_use == none)
      return fmt::format("{} of unit {} is never used", to_string(buffer.kind), buffer.layer);
    for (const Access& access : schedule.accesses(schedule.tasks()[buffer.last_use])) {
      if (access.buffer != id || access.mode == Mode::read) continue;
      if (access.role == Role::optimizer_state || access.role == Role::activation_gradient)
        continue;
      return fmt::format("#{} {} writes {} of unit {}, which nobody reads", buffer.last_use,
                         schedule.describe(buffer.last_use), to_string(buffer.kind), buffer.layer);
    }
  }
  return "";
}

std::string find_state_write_error(const Schedule& schedule) {
  struct Home {
    HomePart part;
    std::uint64_t written = 0;  // bytes so far
  };
  std::map<BufferId, std::vector<std::size_t>> homes_of;
  std::vector<Home> homes;
  for (const HomePart& part : schedule.homes()) {
    if (part.kind != BufferKind::optimizer_state) continue;
    homes_of[part.where.buffer.id].push_back(homes.size());
    homes.push_back({part, 0});
  }
  const auto name = [&](const Home& home) {
    return fmt::format("optimizer state of unit {} from element {}", home.part.unit,
                       home.part.first_element);
  };
  std::uint64_t round = 0;  // the update that is being written
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
    for (const Access& access : schedule.accesses(schedule.tasks()[id])) {
      const auto found = homes_of.find(access.buffer);
      if (access.mode == Mode::read || found == homes_of.end()) continue;
      for (const std::size_t h : found->second) {
        Home& home = homes[h];
        const Slice& where = home.part.where;
        const std::uint64_t begin = std::max(where.offset, access.offset);
        const std::uint64_t end =
            std::min(where.offset + where.bytes, access.offset + access.bytes);
        if (begin >= end) continue;
        if (home.written / where.bytes > round) {
          for (const Home& other : homes) {
            if (other.written >= (round + 1) * other.part.where.bytes) continue;
            return fmt::format("#{} {}: writes {} home again before {} is home", id,
                               schedule.describe(id), name(home), name(other));
          }
          ++round;
        }
        home.written += end - begin;
        if (home.written > (round + 1) * where.bytes) {
          return fmt::format("#{} {}: writes {} home twice in update {}", id, schedule.describe(id),
                             name(home), round);
        }
      }
    }
  }
  for (const Home& home : homes) {
    if (home.written == static_cast<std::uint64_t>(schedule.steps()) * home.part.where.bytes)
      continue;
    return fmt::format("{} was not written home once in each step", name(home));
  }
  return "";
}

}  // namespace spillway::test
