#include "policies/memory_planner.hpp"

#include "base/errors.hpp"

namespace spillway {

std::uint64_t MemoryPlanner::allocate(std::uint64_t bytes) {
  SPILLWAY_ASSERT(bytes > 0);
  live_ += bytes;
  if (const auto bin = by_size_.find(bytes); bin != by_size_.end()) {
    while (!bin->second.empty()) {
      const auto [offset, number] = bin->second.front();
      bin->second.pop_front();
      const auto found = free_.find(offset);
      if (found != free_.end() && found->second.freed_at == number &&
          found->second.bytes == bytes) {
        free_.erase(found);
        return offset;
      }
    }
  }
  merge_neighbours();
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second.bytes < bytes) continue;
    if (best == free_.end() || it->second.bytes < best->second.bytes ||
        (it->second.bytes == best->second.bytes && it->second.freed_at < best->second.freed_at)) {
      best = it;
    }
  }
  if (best != free_.end()) {
    const std::uint64_t offset = best->first;
    const std::uint64_t left = best->second.bytes - bytes;
    free_.erase(best);
    if (left > 0) add_free(offset + bytes, left);
    return offset;
  }
  // Grow, using a free run at the very end if there is one.
  std::uint64_t offset = extent_;
  if (!free_.empty()) {
    const auto last = std::prev(free_.end());
    if (last->first + last->second.bytes == extent_) {
      offset = last->first;
      free_.erase(last);
    }
  }
  extent_ = offset + bytes;
  return offset;
}

void MemoryPlanner::release(std::uint64_t offset, std::uint64_t bytes) {
  SPILLWAY_ASSERT(live_ >= bytes && offset + bytes <= extent_);
  live_ -= bytes;
  add_free(offset, bytes);
}

void MemoryPlanner::add_free(std::uint64_t offset, std::uint64_t bytes) {
  free_[offset] = {bytes, ++clock_};
  by_size_[bytes].emplace_back(offset, clock_);
}

bool MemoryPlanner::allocate_at(std::uint64_t offset, std::uint64_t bytes) {
  auto first = free_.upper_bound(offset);
  if (first == free_.begin()) return false;
  --first;
  // Free runs that touch one another and together cover the bytes asked for.
  std::uint64_t covered = first->first + first->second.bytes;
  if (covered <= offset) return false;
  auto last = std::next(first);
  for (; covered < offset + bytes; ++last) {
    if (last == free_.end() || last->first != covered) return false;
    covered += last->second.bytes;
  }
  const std::uint64_t before = offset - first->first;
  const std::uint64_t begin = first->first;
  free_.erase(first, last);
  if (before > 0) add_free(begin, before);
  if (covered > offset + bytes) add_free(offset + bytes, covered - offset - bytes);
  live_ += bytes;
  return true;
}

void MemoryPlanner::merge_neighbours() {
  for (auto it = free_.begin(); it != free_.end();) {
    const auto next = std::next(it);
    if (next == free_.end() || it->first + it->second.bytes != next->first) {
      it = next;
      continue;
    }
    // As old as its youngest part.
    it->second.bytes += next->second.bytes;
    it->second.freed_at = ++clock_;
    by_size_[it->second.bytes].emplace_back(it->first, clock_);
    free_.erase(next);
  }
}

}  // namespace spillway
