#include "policies/schedule/packing.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace spillway {

namespace {

// Buffers that have their offset, by slice of the program.
class Placed {
 public:
  Placed(const std::vector<Lifetime>& buffers, TaskId distance)
      : buffers_(buffers), distance_(distance), seen_by_(buffers.size(), none) {
    TaskId end = 0;
    for (const Lifetime& buffer : buffers) end = std::max(end, buffer.last + 1 + distance);
    constexpr std::size_t per_slice = 4;
    slice_ = static_cast<TaskId>(end / (buffers.size() / per_slice + 1) + 1);
    by_slice_.resize(end / slice_ + 1);
  }

  // The bytes, [from, to), of those that live while `buffer` does, in order.
  const std::vector<std::pair<std::uint64_t, std::uint64_t>>& beside(std::uint32_t buffer) {
    const Lifetime& one = buffers_[buffer];
    taken_.clear();
    for (TaskId slice = one.first / slice_; slice <= (one.last + distance_) / slice_; ++slice) {
      operations_ += by_slice_[slice].size() + 1;
      for (const std::uint32_t id : by_slice_[slice]) {
        const Lifetime& other = buffers_[id];
        if (seen_by_[id] == buffer || is_before(one, other) || is_before(other, one)) continue;
        seen_by_[id] = buffer;
        taken_.emplace_back(other.offset, other.offset + other.bytes);
      }
    }
    std::sort(taken_.begin(), taken_.end());
    return taken_;
  }
  void add(std::uint32_t buffer) {
    const Lifetime& one = buffers_[buffer];
    for (TaskId slice = one.first / slice_; slice <= (one.last + distance_) / slice_; ++slice) {
      ++operations_;
      by_slice_[slice].push_back(buffer);
    }
  }
  std::uint64_t operations() const { return operations_; }

 private:
  bool is_before(const Lifetime& a, const Lifetime& b) const {
    return a.last + (a.last_lane == b.first_lane ? 0 : distance_) < b.first;
  }

  const std::vector<Lifetime>& buffers_;
  TaskId distance_;
  TaskId slice_ = 1;
  std::vector<std::vector<std::uint32_t>> by_slice_;
  std::vector<std::uint32_t> seen_by_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken_;
  std::uint64_t operations_ = 0;
};

}  // namespace

std::optional<std::uint64_t> pack(std::vector<Lifetime>& buffers, TaskId distance,
                                  std::uint64_t most) {
  std::vector<std::uint32_t> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (buffers[a].bytes != buffers[b].bytes) return buffers[a].bytes > buffers[b].bytes;
    return buffers[a].first < buffers[b].first;
  });
  constexpr std::uint64_t most_operations_each = 500;
  const std::uint64_t most_operations = most_operations_each * (buffers.size() + 1000);
  Placed placed(buffers, distance);
  std::uint64_t extent = 0;
  for (const std::uint32_t id : order) {
    Lifetime& buffer = buffers[id];
    buffer.offset = 0;
    for (const auto& [from, to] : placed.beside(id)) {
      if (from >= buffer.offset + buffer.bytes) break;
      buffer.offset = std::max(buffer.offset, to);
    }
    extent = std::max(extent, buffer.offset + buffer.bytes);
    placed.add(id);
    if (extent > most || placed.operations() > most_operations) return std::nullopt;
  }
  return extent;
}

}  // namespace spillway
