// Offsets in one tier's arena, given and taken back in program order.
//
// A freed extent is kept as it is, by size, and handed out again oldest first: loops over layers
// ask for the same few sizes, so this neither fragments nor makes a buffer wait for the one freed
// just before. Only when no extent of the exact size is free are neighbours merged and the best fit
// cut; only when nothing fits does the arena grow. Deterministic.
//
// The arena is a chain of blocks in address order, free or not; the free ones of one size are a
// list, oldest first. What the same size is asked for again and again costs the same however many
// blocks there are; cutting and merging look blocks up by offset.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace spillway {

class MemoryPlanner {
 public:
  using Block = std::uint32_t;  // names an extent that was given, until it is taken back
  static constexpr Block no_block = 0xffffffffu;

  // A run of `bytes` (> 0, a multiple of buffer_alignment).
  Block allocate(std::uint64_t bytes);
  // Exactly [offset, offset + bytes), if all of it is free and below the extent; else no_block.
  // `hint`: a block that once was given and may be just this one; finds it faster.
  Block allocate_at(std::uint64_t offset, std::uint64_t bytes, Block hint = no_block);
  void release(Block block);

  std::uint64_t offset(Block block) const { return blocks_[block].offset; }
  std::uint64_t extent() const { return extent_; }  // highest end ever given
  // Highest end of what is given and not yet taken back.
  std::uint64_t top() {
    for (; top_ != no_block && blocks_[top_].state != State::given; top_ = blocks_[top_].before)
      ++operations_;
    return top_ == no_block ? 0 : blocks_[top_].offset + blocks_[top_].bytes;
  }
  std::uint64_t live_bytes() const { return live_; }  // given and not yet taken back
  // Blocks looked at so far: what the time of all calls is proportional to, but for look-ups.
  std::uint64_t operations() const { return operations_; }

 private:
  enum class State : std::uint8_t { unused, given, free };
  static constexpr std::uint32_t no_bin = 0xffffffffu;
  struct BlockInfo {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    Block before = no_block, after = no_block;   // in address order, touching
    Block older = no_block, younger = no_block;  // among the free ones of its size
    std::uint32_t bin = no_bin;                  // of its size, once looked up
    State state = State::unused;
    bool is_noted = false;  // in noted_
  };
  // Free blocks of one size, oldest first.
  struct Bin {
    std::uint64_t bytes = 0;
    Block oldest = no_block, youngest = no_block;
    bool is_listed = false;  // in by_size_
  };

  Block add_block(std::uint64_t offset, std::uint64_t bytes, Block before, Block after);
  void remove_block(Block block);
  void add_free(Block block);
  void take_free(Block block);
  std::uint32_t bin_of(std::uint64_t bytes);
  void raise_top(Block block) {
    if (top_ == no_block || blocks_[block].offset >= blocks_[top_].offset) top_ = block;
  }
  void resize(Block block, std::uint64_t bytes) {
    blocks_[block].bytes = bytes;
    blocks_[block].bin = no_bin;
  }
  Block cut_tail(Block block, std::uint64_t bytes);
  Block give(Block block);
  Block best_fit(std::uint64_t bytes);
  Block grow(std::uint64_t bytes);
  void absorb_next(Block block);
  void merge_neighbours();

  std::vector<BlockInfo> blocks_;
  std::vector<Block> unused_;
  std::map<std::uint64_t, Block> by_offset_;
  std::vector<Bin> bins_;
  std::unordered_map<std::uint64_t, std::uint32_t> bin_of_size_;
  std::array<std::uint32_t, 61> recent_bins_{};     // some of those looked up last, by size
  std::map<std::uint64_t, std::uint32_t> by_size_;  // all bins with a block, and some without
  Block last_ = no_block;                           // in address order
  std::vector<Block> noted_;                        // freed since neighbours were merged last
  std::uint64_t extent_ = 0;
  std::uint64_t live_ = 0;
  std::uint64_t operations_ = 0;
  Block top_ = no_block;  // at or above the highest that is given
};

}  // namespace spillway
