#include "policies/schedule/packing.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace spillway {

namespace {

// Lists in one vector, each with room for as many as it may hold.
class Lists {
 public:
  // `room`: by list.
  explicit Lists(const std::vector<std::uint32_t>& room) : begins_(room.size() + 1, 0) {
    for (std::size_t k = 0; k < room.size(); ++k) begins_[k + 1] = begins_[k] + room[k];
    ends_.assign(begins_.begin(), begins_.end() - 1);
    all_.resize(begins_.back());
  }
  void add(std::size_t list, std::uint32_t item) { all_[ends_[list]++] = item; }
  std::span<const std::uint32_t> of(std::size_t list) const {
    return {all_.data() + begins_[list], ends_[list] - begins_[list]};
  }

 private:
  std::vector<std::uint32_t> all_;
  std::vector<std::size_t> begins_, ends_;
};

// How many buffers there are in slices of the program.
struct Slices {
  Slices(const std::vector<Lifetime>& buffers, TaskId distance) {
    TaskId end = 0;
    for (const Lifetime& buffer : buffers) end = std::max(end, buffer.last + 1 + distance);
    constexpr std::size_t per_slice = 4;
    tasks = static_cast<TaskId>(end / (buffers.size() / per_slice + 1) + 1);
    begin.resize(end / tasks + 1, 0);
    live.resize(begin.size() + 1, 0);
    for (const Lifetime& buffer : buffers) {
      ++begin[buffer.first / tasks];
      ++live[buffer.first / tasks];
      --live[(buffer.last + distance) / tasks + 1];  // modulo 2^32
    }
    live.pop_back();
    std::uint32_t sum = 0;
    for (std::uint32_t& one : live) {
      sum += one;
      one = sum;
      all += sum;
    }
  }
  TaskId tasks = 1;                        // of a slice
  std::vector<std::uint32_t> begin, live;  // by slice: buffers that begin in it, that live in it
  std::uint64_t all = 0;                   // the sum of `live`
};

// Buffers that have their offset, by slice of the program.
class Placed {
 public:
  Placed(const std::vector<Lifetime>& buffers, TaskId distance, const Slices& slices)
      : buffers_(buffers),
        distance_(distance),
        slice_(slices.tasks),
        begin_(slices.begin),
        live_(slices.live) {}

  // The lowest offset for `buffer` at which nothing lies that lives while it does.
  std::uint64_t lowest_offset(std::uint32_t buffer) {
    const Lifetime& one = buffers_[buffer];
    taken_.clear();
    const auto look_at = [&](std::span<const std::uint32_t> others) {
      for (const std::uint32_t id : others) {
        const Lifetime& other = buffers_[id];
        if (!is_before(one, other) && !is_before(other, one))
          taken_.emplace_back(other.offset, other.offset + other.bytes);
      }
    };
    const TaskId first = one.first / slice_;
    look_at(live_.of(first));
    for (TaskId slice = first; slice <= (one.last + distance_) / slice_; ++slice) {
      operations_ += live_.of(slice).size() + 1;
      if (slice > first) look_at(begin_.of(slice));
    }
    return first_gap(one.bytes);
  }
  void add(std::uint32_t buffer) {
    const Lifetime& one = buffers_[buffer];
    begin_.add(one.first / slice_, buffer);
    for (TaskId slice = one.first / slice_; slice <= (one.last + distance_) / slice_; ++slice) {
      ++operations_;
      live_.add(slice, buffer);
    }
  }
  std::uint64_t operations() const { return operations_; }

 private:
  // The lowest offset of so many bytes that are not taken. An offset that is too low is raised to
  // the end of what it meets, in any order, until it meets nothing. What is placed early lies low
  // most often, so that a pass or two will do; where it does not, what is left is sorted first.
  std::uint64_t first_gap(std::uint64_t bytes) {
    constexpr int most_passes = 4;
    std::uint64_t offset = 0;
    std::size_t left = taken_.size();
    for (int pass = 0; left > 0; ++pass) {
      if (pass == most_passes)
        std::sort(taken_.begin(), taken_.begin() + static_cast<std::ptrdiff_t>(left));
      std::size_t above = 0;
      const std::uint64_t before = offset;
      for (std::size_t k = 0; k < left; ++k) {
        const auto [from, to] = taken_[k];
        if (to <= offset) continue;
        if (from < offset + bytes)
          offset = to;
        else
          taken_[above++] = {from, to};
      }
      if (offset == before) break;
      left = above;
    }
    return offset;
  }
  bool is_before(const Lifetime& a, const Lifetime& b) const {
    return a.last + (a.last_lane == b.first_lane ? 0 : distance_) < b.first;
  }

  const std::vector<Lifetime>& buffers_;
  TaskId distance_;
  TaskId slice_;
  Lists begin_, live_;                                          // by slice
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken_;  // [from, to)
  std::uint64_t operations_ = 0;
};

}  // namespace

bool is_placed_before(const Lifetime& one, const Lifetime& other) {
  return one.bytes != other.bytes ? one.bytes > other.bytes : one.first < other.first;
}

std::optional<std::uint64_t> pack(std::vector<Lifetime>& buffers, TaskId distance,
                                  std::uint64_t most) {
  std::vector<std::uint32_t> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  const auto is_before = [&](std::uint32_t a, std::uint32_t b) {
    return is_placed_before(buffers[a], buffers[b]);
  };
  if (!std::is_sorted(order.begin(), order.end(), is_before))
    std::stable_sort(order.begin(), order.end(), is_before);
  constexpr std::uint64_t most_operations_each = 500;
  const std::uint64_t most_operations = most_operations_each * (buffers.size() + 1000);
  const Slices slices(buffers, distance);
  // Each buffer is added to its slices, after these have been looked at.
  if (2 * slices.all > most_operations) return std::nullopt;
  Placed placed(buffers, distance, slices);
  std::uint64_t extent = 0;
  for (const std::uint32_t id : order) {
    Lifetime& buffer = buffers[id];
    buffer.offset = placed.lowest_offset(id);
    extent = std::max(extent, buffer.offset + buffer.bytes);
    placed.add(id);
    if (extent > most || placed.operations() > most_operations) return std::nullopt;
  }
  return extent;
}

}  // namespace spillway
