// A drive that fails, below the store: real files behind rings that inject faults, and a volatile
// cache that a power cut empties.
//
// One FaultDrive serves all rings of a process, from any threads; give factory(), whose rings do
// what io_uring may, or threads(), whose rings are Spillway's own (exec/io/io_threads.hpp) over
// this drive, to whatever makes rings (SsdStoreOptions::make_ring, TrainingOptions::make_ring).
// What happens follows from the seed, but for the order in which threads come. Requests are
// numbered from 0 over all rings, as the drive does them, so that one fault, or the power cut, can
// be put at any of them.
//
// With a volatile cache, what is written stays in memory until a sync of its file, as in a drive's
// own cache: reads see it, a sync puts it into the file. When power is cut, each write since the
// last sync is lost, or reaches the file whole, or torn at sectors of 512 bytes, independently of
// the others, as if in any order; all that was synced is there. Without, writes go to the file, as
// when only the process is killed.
//
// Syncs are not passed on to the machine's own disk: the machine stays up, only its process ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "tests/exec/io/faulty_ring.hpp"

namespace spillway::test {

enum class Fault : std::uint8_t {
  io_error,        // EIO, of any request
  no_space,        // ENOSPC, of a write
  short_transfer,  // of a read or write
  interrupted,     // EINTR
  again,           // EAGAIN
  flipped_read,    // one bit of what a read brings, once: the next read is right
  flipped_write,   // one bit of what is written: every read brings it
  power_cut        // cut_power()
};
const char* to_string(Fault fault);

struct FaultPlan {
  // Chances of what a program must survive without a trace, per request and per submission.
  Faults chances;
  // Chances per request, of the kinds that apply to it.
  double io_error = 0, no_space = 0, flipped_read = 0, flipped_write = 0;
  // One fault at the first request it applies to, from number at_request on.
  enum class Where : std::uint8_t {
    anywhere,
    sync,           // only requests that make a file durable
    last_file,      // only requests to the last file of a ring: a store's commit records
    last_file_sync  // only those that make that one durable
  };
  struct Once {
    Fault fault = Fault::io_error;
    std::uint64_t at_request = 0;
    Where where = Where::anywhere;
  };
  std::optional<Once> once;
  bool volatile_cache = false;
  // Beyond this, what was written first leaves the cache for the file.
  std::uint64_t cache_bytes = std::uint64_t{64} << 20;
  // Each request takes up to this much longer.
  std::chrono::microseconds most_latency{0};
  // Each sync takes this much longer, as on a drive that has much to write back.
  std::chrono::microseconds sync_latency{0};
};

class FaultDrive {
 public:
  explicit FaultDrive(std::uint64_t seed, FaultPlan plan = {});
  ~FaultDrive();
  FaultDrive(const FaultDrive&) = delete;
  FaultDrive& operator=(const FaultDrive&) = delete;

  // Make rings of this drive, which must outlive them.
  RingFactory factory();
  RingFactory threads();
  // The one or the other.
  RingFactory rings(bool over_threads) { return over_threads ? threads() : factory(); }

  // Power goes: what survives is written to the files, and all requests fail with EIO from here on.
  void lose_power();
  // The same, and the process is gone (SIGKILL): for a forked child (tests/exec/child.hpp).
  [[noreturn]] void cut_power();

  std::uint64_t requests() const { return requests_.load(std::memory_order_relaxed); }
  // Whether the fault of plan.once has happened.
  bool has_struck() const { return struck_.load(std::memory_order_relaxed); }
  std::uint64_t faults() const { return faults_.load(std::memory_order_relaxed); }
  // Bytes in the volatile cache now.
  std::uint64_t volatile_bytes() const;

 private:
  class Ring;
  struct File;

  File* open(int descriptor);
  std::int32_t transfer(File& file, const IoRequest& request, std::size_t bytes, bool last_file);
  std::int32_t disturbed(File& file, const IoRequest& request, bool last_file);
  // What one request is up against.
  struct Target {
    std::uint64_t number = 0;
    IoKind kind = IoKind::read;
    bool last_file = false;
  };
  bool strikes(Fault fault, const Target& target);
  std::int32_t read(File& file, const IoRequest& request, std::size_t bytes);
  std::int32_t write(File& file, const IoRequest& request, std::size_t bytes, bool flipped);
  void destage(File& file, std::size_t count);
  void write_survivors(File& file, double survives, double torn);
  void lose_power_locked();
  bool chance(double probability);

  const FaultPlan plan_;
  mutable std::mutex mutex_;  // guards all below but the counters
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<File>> files_;
  std::uint64_t cached_bytes_ = 0;
  bool powerless_ = false;
  std::atomic<std::uint64_t> requests_{0}, faults_{0};
  std::atomic<bool> struck_{false};
};

}  // namespace spillway::test
