// Frozen homes of the ssd tier that rest in the checkpoint's own files: they are read in place,
// never copied to the store and never written.
//
// A task that reads a part of such a home becomes reads of the ranges of the files that hold its
// tensors. These lie at any byte, so whole blocks are read into memory of a fixed size, and the
// bytes that are wanted are copied from there while other blocks are on their way.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "exec/data/checkpoint.hpp"
#include "exec/io/io_transfer.hpp"
#include "exec/run/arena.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

class FrozenFiles {
 public:
  class Channel;

  // Why the frozen tensors of the problem's model cannot be read in place, in words: one is of
  // another type than the workload computes with, or transposed. Empty: they can.
  static std::string why_not(const Problem& problem, const Checkpoint& weights);

  // Null where nothing frozen rests in the ssd tier. The schedule's problem has frozen_in_place, so
  // that its host memory has room for the buffer that is taken here
  // (policies/machine/memory_beside.hpp). Throws MachineError.
  static std::unique_ptr<FrozenFiles> open(const Schedule& schedule, const Checkpoint& weights);

  // Whether a byte of the ssd tier lies in the files.
  bool holds(std::uint64_t offset) const;
  // Where any other byte of the ssd tier lies in the store, which has no room for these.
  std::uint64_t in_store(std::uint64_t offset) const;
  std::uint64_t bytes() const { return bytes_; }  // of the ssd tier
  std::uint64_t memory_bytes() const { return memory_.size(); }
  // Read from the files so far.
  std::uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  FrozenFiles() = default;
  void add_buffer(const BufferInfo& buffer);
  void sort();
  void add_home(const Schedule& schedule, const HomePart& home,
                const std::vector<Checkpoint::InFile>& tensors);
  void open_files(const Checkpoint& weights);
  void require_unchanged(std::uint32_t file) const;

  // Bytes of the ssd tier that follow one another in a file, too.
  struct Segment {
    std::uint64_t begin = 0, bytes = 0;
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
  };
  // A buffer of the ssd tier that has frozen homes alone.
  struct Range {
    std::uint64_t begin = 0, end = 0;
    std::uint64_t before = 0;  // bytes of the ranges before it
  };
  const Range* last_from(std::uint64_t offset) const;
  std::vector<Range> ranges_;      // ascending
  std::uint64_t bytes_ = 0;        // of all
  std::vector<Segment> segments_;  // ascending; what lies in none of them is padding
  std::size_t most_pieces_ = 0;
  std::vector<FileDescriptor> files_;
  // Of each file, when it was opened.
  struct State {
    std::int64_t bytes = 0, seconds = 0, nanoseconds = 0;  // size, and time of the last change
    bool operator==(const State&) const = default;
  };
  static State state_of(const FileDescriptor& file, const std::string& name);
  std::vector<State> states_;
  std::vector<std::string> names_, warnings_;
  Arena memory_;
  mutable std::atomic<std::uint64_t> bytes_read_{0};
};

// One lane's way to the files, which outlive it. Made and used on one thread; there is one at a
// time.
class FrozenFiles::Channel {
 public:
  Channel(const FrozenFiles& files, const RingFactory& make_ring);

  // Blocks until bytes [offset, offset + bytes) of the ssd tier are at `to`, and allocates nothing.
  // Throws MachineError with the file and its offset, and where a file is no longer as it was when
  // it was opened.
  void read(std::uint64_t offset, std::byte* to, std::uint64_t bytes);

 private:
  const FrozenFiles& files_;
  std::unique_ptr<IoRing> ring_;
  IoTransfer transfer_;
  std::vector<IoTransfer::Piece> pieces_;
};

}  // namespace spillway
