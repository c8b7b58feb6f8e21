// Offsets in one tier's arena, given and taken back in program order.
//
// A freed extent is kept as it is, by size, and handed out again oldest first: loops over layers
// ask for the same few sizes, so this neither fragments nor makes a buffer wait for the one freed
// just before. Only when no extent of the exact size is free are neighbours merged and the best fit
// cut; only when nothing fits does the arena grow. Deterministic.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

namespace spillway {

class MemoryPlanner {
 public:
  // Offset of a run of `bytes` (> 0, a multiple of buffer_alignment).
  std::uint64_t allocate(std::uint64_t bytes);
  // Takes exactly [offset, offset + bytes) if all of it is free and below the extent.
  bool allocate_at(std::uint64_t offset, std::uint64_t bytes);
  void release(std::uint64_t offset, std::uint64_t bytes);

  std::uint64_t extent() const { return extent_; }    // highest end ever given
  std::uint64_t live_bytes() const { return live_; }  // given and not yet taken back

 private:
  struct Free {
    std::uint64_t bytes = 0;
    std::uint64_t freed_at = 0;  // running number: smaller is older
  };
  void merge_neighbours();
  void add_free(std::uint64_t offset, std::uint64_t bytes);

  std::map<std::uint64_t, Free> free_;  // by offset
  // Offsets by exact size, oldest first; an entry is stale when free_ no longer holds it with that
  // number.
  std::unordered_map<std::uint64_t, std::deque<std::pair<std::uint64_t, std::uint64_t>>> by_size_;
  std::uint64_t extent_ = 0;
  std::uint64_t live_ = 0;
  std::uint64_t clock_ = 0;
};

}  // namespace spillway
