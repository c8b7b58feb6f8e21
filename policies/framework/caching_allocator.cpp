#include "policies/framework/caching_allocator.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/rounding.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t least_block = 512;
constexpr std::uint64_t most_of_small = mib;  // bytes of a small block
constexpr std::uint64_t small_segment = 2 * mib;
constexpr std::uint64_t medium_segment = 20 * mib;  // for blocks below:
constexpr std::uint64_t least_own_segment = 10 * mib;
constexpr std::uint64_t segment_grid = 2 * mib;

std::uint64_t rounded(std::uint64_t bytes, std::uint64_t grid) { return round_up(bytes, grid); }

std::uint64_t segment_bytes(std::uint64_t block) {
  if (block <= most_of_small) return small_segment;
  return block < least_own_segment ? medium_segment : rounded(block, segment_grid);
}

// Most bytes that were reserved; nothing where the capacity is too small.
std::optional<std::uint64_t> reserved_for(const std::vector<TensorEvent>& events,
                                          std::uint64_t capacity) {
  CachingAllocator allocator(capacity);
  std::vector<CachingAllocator::Block> blocks;
  for (const TensorEvent& event : events) {
    if (event.bytes == 0) {
      allocator.release(blocks[event.tensor]);
      continue;
    }
    const auto block = allocator.allocate(event.bytes);
    if (!block) return {};
    if (blocks.size() <= event.tensor) blocks.resize(event.tensor + 1);
    blocks[event.tensor] = *block;
  }
  return allocator.most_reserved();
}

std::uint64_t most_live(const std::vector<TensorEvent>& events) {
  std::vector<std::uint64_t> bytes;
  std::uint64_t live = 0, most = 0;
  for (const TensorEvent& event : events) {
    if (bytes.size() <= event.tensor) bytes.resize(event.tensor + 1);
    live += event.bytes;
    if (event.bytes == 0) live -= bytes[event.tensor];
    bytes[event.tensor] = event.bytes;
    most = std::max(most, live);
  }
  return most;
}

}  // namespace

CachingAllocator::Block CachingAllocator::new_part(Part part) {
  if (unused_.empty()) {
    parts_.push_back(part);
    return static_cast<Block>(parts_.size() - 1);
  }
  const Block block = unused_.back();
  unused_.pop_back();
  parts_[block] = part;
  return block;
}

// Whether another segment of `wanted` bytes has room, once those without a used block are gone.
bool CachingAllocator::give_back_segments(std::uint64_t wanted) {
  if (reserved_ + wanted <= capacity_) return true;
  for (std::set<FreeKey>& free : free_) {
    for (auto one = free.begin(); one != free.end();) {
      const auto [bytes, block] = *one;
      const bool whole = parts_[block].before == no_block && parts_[block].after == no_block;
      if (!whole) {
        ++one;
        continue;
      }
      reserved_ -= bytes;
      unused_.push_back(block);
      one = free.erase(one);
    }
  }
  return reserved_ + wanted <= capacity_;
}

std::optional<CachingAllocator::Block> CachingAllocator::allocate(std::uint64_t bytes) {
  const std::uint64_t wanted = rounded(std::max(bytes, least_block), least_block);
  const bool is_small = wanted <= most_of_small;
  std::set<FreeKey>& free = free_[is_small ? 0 : 1];
  auto found = free.lower_bound({wanted, 0});
  if (found == free.end()) {
    const std::uint64_t segment = segment_bytes(wanted);
    if (!give_back_segments(segment)) return {};
    reserved_ += segment;
    most_reserved_ = std::max(most_reserved_, reserved_);
    found = free.insert({segment, new_part({segment, no_block, no_block, true, is_small})}).first;
  }
  const Block block = std::get<1>(*found);
  free.erase(found);
  const std::uint64_t left = parts_[block].bytes - wanted;
  if (is_small ? left >= least_block : left > most_of_small) {
    const Block rest = new_part({left, block, parts_[block].after, true, is_small});
    Part& part = parts_[block];
    if (part.after != no_block) parts_[part.after].before = rest;
    part.after = rest;
    part.bytes = wanted;
    free.insert({left, rest});
  }
  parts_[block].is_free = false;
  return block;
}

void CachingAllocator::release(Block block) {
  SPILLWAY_ASSERT(!parts_[block].is_free, "a block is released once");
  const auto join = [&](Block first, Block second) {
    Part& part = parts_[first];
    part.bytes += parts_[second].bytes;
    part.after = parts_[second].after;
    if (part.after != no_block) parts_[part.after].before = first;
    unused_.push_back(second);
  };
  const Block after = parts_[block].after, before = parts_[block].before;
  if (after != no_block && parts_[after].is_free) {
    take_out(after);
    join(block, after);
  }
  if (before != no_block && parts_[before].is_free) {
    take_out(before);
    join(before, block);
    block = before;
  }
  parts_[block].is_free = true;
  free_of(parts_[block]).insert({parts_[block].bytes, block});
}

ReplayedMemory replay(const std::vector<TensorEvent>& events) {
  ReplayedMemory memory;
  memory.live = most_live(events);
  constexpr std::uint64_t unlimited = ~std::uint64_t{0} / 2;
  std::uint64_t too_small = memory.live > 0 ? memory.live - 1 : 0;
  std::uint64_t enough = *reserved_for(events, unlimited);
  const std::uint64_t step =
      std::max<std::uint64_t>((enough - std::min(enough, too_small)) / 250, 1);
  while (enough > too_small + step) {
    const std::uint64_t tried = too_small + (enough - too_small) / 2;
    if (reserved_for(events, tried)) {
      enough = tried;
    } else {
      too_small = tried;
    }
  }
  memory.needed = enough;
  return memory;
}

}  // namespace spillway
