// Moves runs of bytes between memory and striped files over an IoRing: the retry logic of the
// store.
//
// A run is cut into requests of at most one stripe, as many in flight as the queue is deep. Handled
// here: short transfers (the rest is asked for again), EINTR and EAGAIN (again, a bounded number of
// times without progress), fewer requests accepted than queued, completions in any order, and
// errors: the first one is kept, no new request starts, what is in flight is waited for (the kernel
// may still use the memory), and only then it is thrown. After such an error the object can be used
// again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exec/io_ring.hpp"

namespace spillway {

inline constexpr std::uint64_t io_alignment = 4096;  // of offsets, lengths and memory, for O_DIRECT

// Byte offsets of one address space, laid round-robin over files in runs of stripe_bytes.
struct Striping {
  std::uint64_t stripe_bytes = 0;
  std::uint32_t files = 1;

  struct Place {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;      // in the file
    std::uint64_t contiguous = 0;  // bytes from here to the end of the stripe
  };
  Place locate(std::uint64_t offset) const;
  // Bytes of file `file` when the address space is `total` bytes long.
  std::uint64_t file_bytes(std::uint32_t file, std::uint64_t total) const;
};

class IoTransfer {
 public:
  // `names` are the paths of the ring's files, for errors. `ring` must outlive this.
  IoTransfer(IoRing& ring, unsigned queue_depth, Striping striping, std::vector<std::string> names);

  // Blocks until all `bytes` (with `offset` and `memory`, multiples of io_alignment) are
  // transferred. Throws MachineError naming file, offset and remedy. Allocates nothing unless it
  // throws.
  void transfer(IoKind kind, std::uint64_t offset, std::byte* memory, std::uint64_t bytes);
  // Blocks until everything written to the files is durable (fdatasync of each).
  void sync();

 private:
  struct Slot {
    IoRequest request;    // what is still to be transferred
    unsigned stalls = 0;  // retries since the last progress
    // The thread sanitizer does not see that the kernel orders submission before completion; a
    // store and a load per request say so.
    std::atomic<std::uint32_t> handover{0};
  };
  struct Failure {
    bool happened = false;
    IoRequest request;
    int error_number = 0;  // 0: the file ended early
  };

  void run();
  bool next_request(IoRequest& request);
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
  Failure failure_;
};

}  // namespace spillway
