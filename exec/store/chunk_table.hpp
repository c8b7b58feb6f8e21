// Checksums of what lies in the store: one XXH3 (64 bit) per chunk, held in memory.
//
// The address space of the store is cut wherever a transfer of the schedule begins or ends, and on
// the stripe grid, so that every transfer covers whole chunks and every chunk lies in one file. A
// chunk's checksum is set when it is written and compared whenever it is read. A chunk is written
// by one lane and read by another only after the schedule says so; the table needs no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace spillway {

class ChunkTable {
 public:
  // `boundaries` (bytes; any order, repeats allowed) and every multiple of `grid` cut [0, size)
  // into chunks. None of them has a checksum yet.
  ChunkTable(std::vector<std::uint64_t> boundaries, std::uint64_t grid, std::uint64_t size);

  std::size_t count() const { return sums_.size(); }
  // The chunk that begins at `address`; count() when none does (at: an assertion).
  std::size_t find(std::uint64_t address) const;
  std::size_t at(std::uint64_t address) const;
  std::uint64_t begin(std::size_t chunk) const { return begins_[chunk]; }
  std::uint64_t end(std::size_t chunk) const { return begins_[chunk + 1]; }

  // 0: nothing was written to the chunk yet, or nobody knows what.
  std::uint64_t sum(std::size_t chunk) const { return sums_[chunk]; }
  void set(std::size_t chunk, std::uint64_t sum) { sums_[chunk] = sum; }

  // Never 0.
  static std::uint64_t checksum(std::span<const std::byte> bytes);

 private:
  std::vector<std::uint64_t> begins_;  // ascending; one more than there are chunks: the size
  std::vector<std::uint64_t> sums_;
};

// Calls take(address, bytes) for [begin, begin + bytes), which is whole chunks, in runs of whole
// chunks of at most `most` bytes (a chunk is never longer than that).
template <typename Take>
void for_chunk_runs(const ChunkTable& chunks, std::uint64_t begin, std::uint64_t bytes,
                    std::uint64_t most, const Take& take) {
  const std::uint64_t end = begin + bytes;
  for (std::uint64_t at = begin; at < end;) {
    std::uint64_t to = at;
    for (std::size_t chunk = chunks.at(at); to < end && chunks.end(chunk) - at <= most; ++chunk) {
      to = chunks.end(chunk);
    }
    take(at, to - at);
    at = to;
  }
}

}  // namespace spillway
