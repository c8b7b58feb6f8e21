// The kernel side of the SSD store, behind an interface small enough to have twins.
//
// A ring takes requests, hands them to the kernel together, and gives back completions in any
// order. What to do about short transfers, EAGAIN or EIO is not its business:
// exec/io/io_transfer.hpp decides that, over io_uring (exec/io/io_uring.hpp), over threads with
// pread and pwrite (exec/io/io_threads.hpp) and over a test's ring that injects faults alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace spillway {

enum class IoKind : std::uint8_t { read, write, sync };

struct IoRequest {
  IoKind kind = IoKind::read;
  std::uint32_t tag = 0;          // comes back with the completion
  std::uint32_t file = 0;         // index into the ring's files
  std::uint32_t bytes = 0;        // 0 for sync
  std::uint64_t file_offset = 0;  // bytes
  std::byte* memory = nullptr;    // written to by a read; only read from by a write
};

struct IoCompletion {
  std::uint32_t tag = 0;
  std::int32_t result = 0;  // bytes transferred, or -errno
};

// Used by one thread. No more than the ring's depth may be queued or in flight at a time.
class IoRing {
 public:
  virtual ~IoRing() = default;
  // Remembers a request for the next submit_and_wait. The memory must stay until its completion.
  virtual void queue(const IoRequest& request) = 0;
  // Hands over what is queued and waits until one completion is there. Returns how many requests
  // were accepted, which may be fewer than queued (the rest stays queued), or -errno.
  virtual int submit_and_wait() = 0;
  // Hands over what is queued without waiting, if that is easy: what is not accepted stays queued.
  virtual void submit_now() {}
  // Takes the completions that are there, at most completions.size(). Returns how many.
  virtual std::size_t reap(std::span<IoCompletion> completions) = 0;
  // Lets the machine catch its breath before retry number `attempt` (from 1): 10 us doubling to 1
  // ms.
  virtual void pause(unsigned attempt);
  // Tells the kernel that this memory will be used again and again, which saves mapping it each
  // time. An optimisation: where the kernel refuses, a warning is added and transfers work without
  // it.
  virtual void register_memory(std::span<std::byte> memory) = 0;
  virtual const std::vector<std::string>& warnings() const = 0;
};

// Makes a ring of `depth` requests over open files, to be used only by the thread that makes it.
using RingFactory =
    std::function<std::unique_ptr<IoRing>(std::span<const int> files, unsigned depth)>;

}  // namespace spillway
