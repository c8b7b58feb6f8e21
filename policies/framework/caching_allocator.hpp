// PyTorch's allocator of GPU memory (c10/cuda/CUDACachingAllocator.cpp, versions 1.x and 2.x, with
// the default options), and what it reserves for tensors that come and go.
//
//   size of a block    the tensor's bytes, rounded up to 512
//   segment            what is asked of CUDA where no free block is large enough: 2 MiB for a block
//                      of at most 1 MiB, 20 MiB for one below 10 MiB, else the block rounded up to
//                      2 MiB. Small blocks and large ones are in segments of their own
//   choice             the smallest free block that is large enough, of those the first made
//   split              a block gives back what is left of it: where that is 512 bytes at least, of
//                      large blocks where it is more than 1 MiB; free neighbours become one
//   out of memory      first all segments in which nothing is used are given back to CUDA
//
// Every CUDA stream has blocks of its own; here there is one. More streams reserve more.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace spillway {

class CachingAllocator {
 public:
  using Block = std::uint32_t;

  explicit CachingAllocator(std::uint64_t capacity) : capacity_(capacity) {}

  // Nothing: out of memory.
  std::optional<Block> allocate(std::uint64_t bytes);
  void release(Block block);

  std::uint64_t reserved() const { return reserved_; }            // of segments
  std::uint64_t most_reserved() const { return most_reserved_; }  // so far

 private:
  static constexpr Block no_block = 0xffffffffu;
  struct Part {  // a block, used or free
    std::uint64_t bytes = 0;
    Block before = no_block, after = no_block;  // in its segment
    bool is_free = true, is_small = false;
  };
  // By size, then the first made; blocks of small tensors apart.
  using FreeKey = std::tuple<std::uint64_t, Block>;

  Block new_part(Part part);
  bool give_back_segments(std::uint64_t wanted);
  std::set<FreeKey>& free_of(const Part& part) { return free_[part.is_small ? 0 : 1]; }
  void take_out(Block block) { free_of(parts_[block]).erase({parts_[block].bytes, block}); }

  std::uint64_t capacity_, reserved_ = 0, most_reserved_ = 0;
  std::vector<Part> parts_;
  std::vector<Block> unused_;  // places in parts_
  std::set<FreeKey> free_[2];
};

// A tensor is allocated, with `bytes`, or released, with 0.
struct TensorEvent {
  std::uint32_t tensor = 0;
  std::uint64_t bytes = 0;
};

struct ReplayedMemory {
  std::uint64_t live = 0;    // most bytes of tensors at once
  std::uint64_t needed = 0;  // capacity with which the allocator serves all of them
};

// Of tensors 0..n-1, each allocated once, in this order. `needed` is exact to 1/250 of what
// fragmentation could add.
ReplayedMemory replay(const std::vector<TensorEvent>& events);

}  // namespace spillway
