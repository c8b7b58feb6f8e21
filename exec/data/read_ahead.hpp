// Reads parts of files in a given order, ahead of whoever uses them: on a thread of its own,
// unbuffered where the file system can, in large blocks into a fixed amount of memory.
//
// Used by one thread. Going on from anywhere else than where the last use ended is possible and
// costs what was read ahead. The thread is started by the first use.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "exec/io/io_choice.hpp"
#include "exec/run/arena.hpp"

namespace spillway {

class ReadAhead {
 public:
  struct File {
    int descriptor = -1;  // outlives this; unbuffered from now on
    std::uint64_t bytes = 0;
    std::string name;  // for errors
  };
  // Bytes [begin, end) of a file, not empty.
  struct Extent {
    std::size_t file = 0;
    std::uint64_t begin = 0, end = 0;
  };
  static constexpr std::uint64_t block_bytes = std::uint64_t{16} << 20;
  static constexpr std::size_t blocks_ahead = 3;  // the one in use is one of them

  // `extents`: in the order in which they will be used.
  ReadAhead(std::vector<File> files, std::vector<Extent> extents,
            RingFactory make_ring = make_usual_ring);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The bytes of an extent from its byte `from` on, as many as lie together: at least 8, or up to
  // the extent's end. They stay until the next call. Throws MachineError where they cannot be read.
  std::span<const std::byte> bytes(std::size_t extent, std::uint64_t from);

  // XXH3 of the bytes of all extents, and of those beside them that are read with them. What nobody
  // has asked for yet is read. Throws as bytes() does.
  std::uint64_t hash();

  // From here on told, on the thread that uses this, how many bytes have been used for the first
  // time, and how many there are; may be empty. What it throws ends the call that it came from.
  void tell(std::function<void(std::uint64_t done, std::uint64_t all)> progress);
  // Taken for blocks; 0 before the first use.
  std::uint64_t memory_bytes() const { return memory_.size(); }

 private:
  struct Block {
    std::size_t file = 0;
    std::uint64_t offset = 0;  // in the file, on the grid of unbuffered I/O
    std::uint64_t bytes = 0;   // up to there, or to the end of the file
  };
  struct Slot {
    std::size_t block = 0;
    bool holds = false;  // the block, or why it could not be read
    std::exception_ptr failure;
  };
  Block block_at(std::size_t index) const;
  std::byte* memory_of(std::size_t block) const;
  void run(const std::stop_token& stop);
  bool find_next(std::size_t& block) const;
  void note_use(std::size_t block);

  std::vector<File> files_;
  std::vector<Extent> extents_;
  std::vector<std::size_t> first_block_;  // of each extent; then how many there are
  RingFactory make_ring_;
  std::uint64_t slot_bytes_ = 0;  // of the largest block
  Arena memory_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::array<Slot, blocks_ahead> slots_;
  std::vector<std::optional<std::uint64_t>> hashes_;  // of the blocks that were read
  std::size_t wanted_ = 0;                            // the block in use
  std::function<void(std::uint64_t, std::uint64_t)> progress_;
  std::vector<bool> used_;  // by block
  std::uint64_t bytes_used_ = 0, bytes_ = 0;
  std::jthread thread_;
};

}  // namespace spillway
