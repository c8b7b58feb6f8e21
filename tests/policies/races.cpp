#include "tests/policies/races.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace spillway::test {

namespace {

struct Touch {
  std::uint64_t begin, end;
  TaskId task;
  bool writes;
};

std::array<std::vector<Touch>, tier_count> touches_by_tier(const Schedule& schedule) {
  std::array<std::vector<Touch>, tier_count> touches;
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
    for (const Access& access : schedule.accesses(schedule.tasks()[id])) {
      const BufferInfo& buffer = schedule.buffers()[access.buffer];
      const std::uint64_t begin = buffer.offset + access.offset;
      touches[static_cast<std::size_t>(buffer.tier)].push_back(
          {begin, begin + access.bytes, id, access.mode != Mode::read});
    }
  }
  return touches;
}

class Clocks {
 public:
  explicit Clocks(const Schedule& schedule)
      : before_(schedule.tasks().size()), place_(schedule.tasks().size()) {
    std::array<TaskId, lane_count> last;
    last.fill(none);
    std::array<std::uint32_t, lane_count> count{};
    for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
      const auto lane = static_cast<std::size_t>(schedule.tasks()[id].lane);
      if (last[lane] != none) join(before_[id], last[lane], lane);
      place_[id] = {lane, count[lane]++};
      last[lane] = id;
      for (const TaskId next : schedule.successors(id)) join(before_[next], id, lane);
    }
  }
  // Whether `first` certainly ends before `second` starts.
  bool ordered(TaskId first, TaskId second) const {
    const auto& [lane, at] = place_[first];
    return before_[second][lane] > at;
  }

 private:
  using Clock = std::array<std::uint32_t, lane_count>;  // per lane, how many tasks ended before
  void join(Clock& clock, TaskId from, std::size_t lane) const {
    for (std::size_t l = 0; l < clock.size(); ++l) clock[l] = std::max(clock[l], before_[from][l]);
    clock[lane] = std::max(clock[lane], place_[from].second + 1);
  }
  std::vector<Clock> before_;
  std::vector<std::pair<std::size_t, std::uint32_t>> place_;  // lane, place on it
};

}  // namespace

std::string find_race(const Schedule& schedule) {
  // Clocks are joined in program order, which is sound only if edges point forward.
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
    for (const TaskId next : schedule.successors(id)) {
      if (next <= id) return fmt::format("an edge points back, from {} to {}", id, next);
    }
  }
  const Clocks clocks(schedule);
  for (auto& touches : touches_by_tier(schedule)) {
    std::sort(touches.begin(), touches.end(),
              [](const Touch& a, const Touch& b) { return a.begin < b.begin; });
    for (std::size_t i = 0; i < touches.size(); ++i) {
      for (std::size_t j = i + 1; j < touches.size() && touches[j].begin < touches[i].end; ++j) {
        const Touch &a = touches[i], &b = touches[j];
        if (a.task == b.task || !(a.writes || b.writes)) continue;
        const auto [first, second] = std::minmax(a.task, b.task);
        if (clocks.ordered(first, second)) continue;
        return fmt::format("#{} ({}) and #{} ({}) may run at once and share bytes", first,
                           schedule.describe(first), second, schedule.describe(second));
      }
    }
  }
  return "";
}

bool certainly_before(const Schedule& schedule, TaskId first, TaskId second) {
  return Clocks(schedule).ordered(first, second);
}

std::string find_overlap(const Schedule& schedule) {
  std::array<std::vector<const BufferInfo*>, tier_count> tiers;
  for (const BufferInfo& buffer : schedule.buffers()) {
    if (!buffer.persistent && buffer.first_use == none) continue;  // never used: has no memory
    tiers[static_cast<std::size_t>(buffer.tier)].push_back(&buffer);
  }
  const auto at_once = [](const BufferInfo& a, const BufferInfo& b) {
    if (a.persistent || b.persistent) return true;
    return a.first_use <= b.last_use && b.first_use <= a.last_use;
  };
  for (auto& buffers : tiers) {
    std::sort(buffers.begin(), buffers.end(),
              [](const BufferInfo* a, const BufferInfo* b) { return a->offset < b->offset; });
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const BufferInfo& a = *buffers[i];
      for (std::size_t j = i + 1; j < buffers.size(); ++j) {
        const BufferInfo& b = *buffers[j];
        if (b.offset >= a.offset + a.bytes) break;
        if (!at_once(a, b)) continue;
        return fmt::format(
            "{} of unit {} at {} and {} of unit {} at {} are live at once and overlap in {} memory",
            to_string(a.kind), a.layer, a.offset, to_string(b.kind), b.layer, b.offset,
            to_string(a.tier));
      }
    }
  }
  return "";
}

}  // namespace spillway::test
