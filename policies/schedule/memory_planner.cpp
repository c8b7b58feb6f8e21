#include "policies/schedule/memory_planner.hpp"

#include <algorithm>
#include <iterator>

#include "base/errors.hpp"

namespace spillway {

MemoryPlanner::Block MemoryPlanner::allocate(std::uint64_t bytes) {
  SPILLWAY_ASSERT(bytes > 0);
  ++operations_;
  if (const Block block = bins_[bin_of(bytes)].oldest; block != no_block) {
    take_free(block);
    return give(block);
  }
  merge_neighbours();
  const Block block = best_fit(bytes);
  return give(block != no_block ? block : grow(bytes));
}

// The smallest free block that is large enough, of these the oldest, cut to size.
MemoryPlanner::Block MemoryPlanner::best_fit(std::uint64_t bytes) {
  auto entry = by_size_.lower_bound(bytes);
  while (entry != by_size_.end() && bins_[entry->second].oldest == no_block) {
    ++operations_;
    bins_[entry->second].is_listed = false;
    entry = by_size_.erase(entry);
  }
  if (entry == by_size_.end()) return no_block;
  const Block block = bins_[entry->second].oldest;
  take_free(block);
  if (blocks_[block].bytes > bytes) add_free(cut_tail(block, bytes));
  return block;
}

// New memory at the end of the arena, with what is free there if anything is.
MemoryPlanner::Block MemoryPlanner::grow(std::uint64_t bytes) {
  if (last_ != no_block && blocks_[last_].state == State::free) {
    const Block block = last_;
    take_free(block);
    resize(block, bytes);
    extent_ = blocks_[block].offset + bytes;
    return block;
  }
  const Block block = add_block(extent_, bytes, last_, no_block);
  extent_ += bytes;
  return block;
}

MemoryPlanner::Block MemoryPlanner::allocate_at(std::uint64_t offset, std::uint64_t bytes,
                                                Block hint) {
  ++operations_;
  Block first = hint;
  if (first >= blocks_.size() || blocks_[first].offset != offset ||
      blocks_[first].state == State::unused) {
    const auto above = by_offset_.upper_bound(offset);
    if (above == by_offset_.begin()) return no_block;
    first = std::prev(above)->second;
  }
  // Free blocks that together cover the bytes asked for.
  const std::uint64_t end = offset + bytes;
  for (Block block = first;; block = blocks_[block].after) {
    if (block == no_block || blocks_[block].state != State::free) return no_block;
    ++operations_;
    if (blocks_[block].offset + blocks_[block].bytes >= end) break;
  }
  take_free(first);
  Block given = first;
  if (blocks_[first].offset < offset) {
    given = cut_tail(first, offset - blocks_[first].offset);
    add_free(first);
  }
  while (blocks_[given].offset + blocks_[given].bytes < end) {
    take_free(blocks_[given].after);
    absorb_next(given);
  }
  if (blocks_[given].bytes > bytes) add_free(cut_tail(given, bytes));
  return give(given);
}

void MemoryPlanner::release(Block block) {
  SPILLWAY_ASSERT(block < blocks_.size() && blocks_[block].state == State::given);
  ++operations_;
  live_ -= blocks_[block].bytes;
  add_free(block);
}

MemoryPlanner::Block MemoryPlanner::give(Block block) {
  blocks_[block].state = State::given;
  raise_top(block);
  live_ += blocks_[block].bytes;
  return block;
}

MemoryPlanner::Block MemoryPlanner::add_block(std::uint64_t offset, std::uint64_t bytes,
                                              Block before, Block after) {
  Block block = static_cast<Block>(blocks_.size());
  if (unused_.empty()) {
    blocks_.emplace_back();
  } else {
    block = unused_.back();
    unused_.pop_back();
  }
  BlockInfo& info = blocks_[block];
  info.offset = offset;
  resize(block, bytes);
  info.before = before;
  info.after = after;
  info.state = State::given;
  if (before != no_block) blocks_[before].after = block;
  (after != no_block ? blocks_[after].before : last_) = block;
  by_offset_[offset] = block;
  return block;
}

// The block's bytes belong to the one before from now on.
void MemoryPlanner::remove_block(Block block) {
  BlockInfo& info = blocks_[block];
  if (top_ == block) top_ = info.before;
  blocks_[info.before].after = info.after;
  (info.after != no_block ? blocks_[info.after].before : last_) = info.before;
  by_offset_.erase(info.offset);
  info.state = State::unused;
  unused_.push_back(block);
}

std::uint32_t MemoryPlanner::bin_of(std::uint64_t bytes) {
  std::uint32_t& last = recent_bins_[bytes / 4096 % recent_bins_.size()];
  if (last < bins_.size() && bins_[last].bytes == bytes) return last;
  const auto [entry, is_new] =
      bin_of_size_.try_emplace(bytes, static_cast<std::uint32_t>(bins_.size()));
  if (is_new) bins_.push_back({bytes, no_block, no_block, false});
  return last = entry->second;
}

void MemoryPlanner::add_free(Block block) {
  BlockInfo& info = blocks_[block];
  if (info.bin == no_bin) info.bin = bin_of(info.bytes);
  Bin& bin = bins_[info.bin];
  info.state = State::free;
  info.older = bin.youngest;
  info.younger = no_block;
  (bin.youngest != no_block ? blocks_[bin.youngest].younger : bin.oldest) = block;
  bin.youngest = block;
  if (!bin.is_listed) by_size_[bin.bytes] = info.bin;
  bin.is_listed = true;
  if (info.is_noted) return;
  info.is_noted = true;
  noted_.push_back(block);
}

void MemoryPlanner::take_free(Block block) {
  BlockInfo& info = blocks_[block];
  Bin& bin = bins_[info.bin];
  (info.older != no_block ? blocks_[info.older].younger : bin.oldest) = info.younger;
  (info.younger != no_block ? blocks_[info.younger].older : bin.youngest) = info.older;
  info.state = State::given;
}

// Keeps the first `bytes`; returns the rest, which is in no list yet.
MemoryPlanner::Block MemoryPlanner::cut_tail(Block block, std::uint64_t bytes) {
  ++operations_;
  const std::uint64_t rest = blocks_[block].bytes - bytes;
  resize(block, bytes);
  return add_block(blocks_[block].offset + bytes, rest, block, blocks_[block].after);
}

void MemoryPlanner::absorb_next(Block block) {
  ++operations_;
  const Block next = blocks_[block].after;
  resize(block, blocks_[block].bytes + blocks_[next].bytes);
  remove_block(next);
}

// Only blocks freed since the last time can have a free neighbour. In address order; a merged block
// is as old as its youngest part.
void MemoryPlanner::merge_neighbours() {
  operations_ += noted_.size();
  for (const Block block : noted_) blocks_[block].is_noted = false;
  std::erase_if(noted_, [&](Block block) { return blocks_[block].state != State::free; });
  std::sort(noted_.begin(), noted_.end(),
            [&](Block a, Block b) { return blocks_[a].offset < blocks_[b].offset; });
  const auto is_free = [&](Block block) {
    return block != no_block && blocks_[block].state == State::free;
  };
  std::vector<Block> merged;
  merged.swap(noted_);
  for (Block block : merged) {
    if (!is_free(block)) continue;  // merged with the one before
    while (is_free(blocks_[block].before)) block = blocks_[block].before;
    if (!is_free(blocks_[block].after)) continue;
    take_free(block);
    while (is_free(blocks_[block].after)) {
      take_free(blocks_[block].after);
      absorb_next(block);
    }
    add_free(block);
  }
  for (const Block block : noted_) blocks_[block].is_noted = false;
  noted_.clear();
  merged.clear();
  noted_.swap(merged);  // keeps the memory
}

}  // namespace spillway
