// Moves ranges of bytes between memory and striped files over an IoRing: the retry logic of the
// store.
//
// A run is cut into requests of at most one stripe, as many in flight as the queue is deep. Handled
// here: short transfers (the rest is asked for again), EINTR and EAGAIN (again, a bounded number of
// times without progress), fewer requests accepted than queued, completions in any order, and
// errors: the first one is kept, no new request starts, what is in flight is waited for (the kernel
// may still use the memory), and only then it is thrown. After such an error the object can be used
// again.
//
// With a ChunkTable, requests are whole chunks: their checksums are set before they are written
// and compared when they have been read, while other requests are in flight. A chunk that does not
// match is read once more; if it then matches, that is remembered as a warning, else it is an
// error.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "exec/io/io_ring.hpp"
#include "exec/store/chunk_table.hpp"

namespace spillway {

// What was read is not what the checksums say was written there.
class ChecksumError : public MachineError {
 public:
  using MachineError::MachineError;
};

inline constexpr std::uint64_t io_alignment = 4096;  // of offsets, lengths and memory, for O_DIRECT

// A set of files that addresses from `from` on lie in, up to those of the next set.
struct FileSet {
  std::uint64_t from = 0;
  std::uint32_t files = 0;
  bool operator==(const FileSet&) const = default;
};

// Byte offsets of one address space, laid round-robin over files in runs of stripe_bytes, after
// `begin` bytes of each file that are not part of it; or over those of several sets, each of which
// has some of the addresses.
struct Striping {
  std::uint64_t stripe_bytes = 0;
  std::uint32_t files = 1;  // of all sets
  std::uint64_t begin = 0;
  // Ascending, the first from address 0; empty: one set of all files.
  std::vector<FileSet> sets = {};

  struct Place {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;      // in the file
    std::uint64_t contiguous = 0;  // bytes from here to the end of the stripe
  };
  Place locate(std::uint64_t offset) const;
  // Bytes of file `file` after `begin`, when the address space is `total` bytes long.
  std::uint64_t file_bytes(std::uint32_t file, std::uint64_t total) const;
};

class IoTransfer {
 public:
  // `names` are the paths of the ring's files, for errors: first those that `striping` is over,
  // then any others. `chunks` (may be null) covers the striped address space. `ring` and `chunks`
  // must outlive this.
  IoTransfer(IoRing& ring, unsigned queue_depth, Striping striping, std::vector<std::string> names,
             ChunkTable* chunks = nullptr);

  // Blocks until all `bytes` (with `offset` and `memory`, multiples of io_alignment) are
  // transferred. Throws MachineError naming file, offset and remedy. Allocates nothing unless it
  // throws.
  void transfer(IoKind kind, std::uint64_t offset, std::byte* memory, std::uint64_t bytes);
  // The same within one file, by its index, without checksums.
  void transfer_in_file(IoKind kind, std::uint32_t file, std::uint64_t offset, std::byte* memory,
                        std::uint64_t bytes);

  // Bytes of one file that may begin and end anywhere, and where they are wanted.
  struct Piece {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
    std::byte* to = nullptr;
    std::uint64_t bytes = 0;
  };
  // Of memory that pieces are read through, for each request in flight.
  static constexpr std::uint64_t piece_memory = (std::uint64_t{1} << 20) + io_alignment;
  // Blocks until all pieces are read: whole blocks into `memory`, piece_memory for each request,
  // and from there to where they are wanted while other requests are in flight. Without checksums.
  // Throws as transfer() does.
  void gather(std::span<const Piece> pieces, std::span<std::byte> memory);

  // Blocks until everything written to files [first, first + count) is durable (fdatasync of each).
  void sync(std::uint32_t first, std::uint32_t count);
  // Of all striped files.
  void sync() { sync(0, striping_.files); }

  // Chunks whose checksum matched only when they were read again.
  std::uint64_t read_again() const { return read_again_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    IoRequest request;    // what is still to be transferred
    unsigned stalls = 0;  // retries since the last progress
    IoRequest whole;      // what was to be transferred when it was cut
    std::size_t chunk = 0;
    bool checked = false;  // the chunk's checksum is to be compared
    bool again = false;    // it did not match the first time
    // Of a piece: where its bytes are wanted, how many, and how many come before them in memory.
    std::byte* to = nullptr;
    std::uint32_t wanted = 0, skipped = 0;
    // The thread sanitizer does not see that the kernel orders submission before completion; a
    // store and a load per request say so.
    std::atomic<std::uint32_t> handover{0};
  };
  struct Failure {
    bool happened = false;
    IoRequest request;
    int error_number = 0;  // or one of the two below
  };
  static constexpr int file_ended = 0;
  static constexpr int wrong_checksum = -1;

  void run();
  void next_request(Slot& slot);
  void next_of_piece(Slot& slot, std::uint32_t index);
  bool has_piece(const Slot& slot, std::uint32_t moved) const;
  bool matches(Slot& slot);
  void queue(std::uint32_t slot);
  void submit();
  void complete(const IoCompletion& completion);
  void retry_or_fail(Slot& slot, std::uint32_t index, int error_number);
  void finish(std::uint32_t slot);
  void fail(const IoRequest& request, int error_number);
  [[noreturn]] void throw_failure() const;

  IoRing& ring_;
  Striping striping_;
  std::vector<std::string> names_;
  ChunkTable* chunks_;
  std::atomic<std::uint64_t> read_again_{0};
  std::unique_ptr<Slot[]> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<IoCompletion> completions_;
  std::size_t in_flight_ = 0;     // queued or with the kernel
  unsigned worst_stall_ = 0;      // of this round
  unsigned submit_failures_ = 0;  // in a row
  bool broken_ = false;           // the kernel refused submission: its state is unknown

  // The run at work: what has not been cut into requests yet.
  IoKind kind_ = IoKind::read;
  std::uint64_t offset_ = 0;
  std::byte* memory_ = nullptr;
  std::uint64_t left_ = 0;  // bytes; for sync: files
  std::int64_t file_ = -1;  // -1: striped
  std::size_t chunk_ = 0;   // of the next request
  bool checked_ = false;    // the run has checksums
  // Of gather(): what is left, of the first from `piece_done_` on, and the memory.
  std::span<const Piece> pieces_;
  std::uint64_t piece_done_ = 0;
  std::byte* piece_memory_ = nullptr;
  Failure failure_;
};

}  // namespace spillway
