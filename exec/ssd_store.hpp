// The `ssd` tier: one address space striped over any number of directories, one file in each, no
// RAID.
//
// All blocks are reserved at construction, so that a full disk shows before the first step. Lanes
// transfer through a Channel each. A write is durable only after sync().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "exec/io_transfer.hpp"
#include "exec/store_file.hpp"

namespace spillway {

struct SsdStoreOptions {
  std::uint64_t stripe_bytes = std::uint64_t{1} << 20;  // multiple of 4096, at most 1 GiB
  unsigned queue_depth = 32;                            // requests in flight per channel, 1 .. 4096
  bool direct =
      true;  // unbuffered I/O; where a file system cannot, the page cache is used, with a warning
  bool keep = false;  // leave the files behind at the end
  bool reuse =
      false;  // open the files of an earlier run (kept, or left by a crash), contents unchanged
};

class SsdStore {
 public:
  using Options = SsdStoreOptions;
  class Channel;

  // A store of `bytes` (rounded up to 4096) in the files DIRECTORY[i]/spillway-store-<i>.bin, zero
  // unless reused. A file of that name that no run holds (left by a crash) is replaced. On failure
  // nothing that was created stays. Throws InputError (no or missing directory, bad option),
  // MachineError (not enough room, in use by another run, other sizes than to be reused,
  // permissions).
  SsdStore(const std::vector<std::filesystem::path>& directories, std::uint64_t bytes,
           Options options = {});

  std::uint64_t size() const { return bytes_; }
  const Options& options() const { return options_; }
  std::vector<std::filesystem::path> files() const;
  // What does not work here as it should, for the user to read. A Channel has warnings of its own.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void reserve();
  void open_again();
  void use_direct();

  Options options_;
  std::uint64_t bytes_ = 0;
  Striping striping_;
  std::vector<StoreFile> files_;
  std::vector<std::string> warnings_;
};

// One lane's way to the store, with an io_uring of its own. Made, used and registered with memory
// on one and the same thread; the counters and nothing else may be read from others. Must not
// outlive the store.
class SsdStore::Channel {
 public:
  // Throws MachineError when io_uring is not available.
  explicit Channel(const SsdStore& store);

  // Both block until all `bytes` have been transferred, and allocate nothing. `offset`, `bytes` and
  // the address are multiples of 4096, and the run lies inside the store. Throw MachineError with
  // the file and its offset; what was transferred before that is unspecified.
  void read(std::uint64_t offset, std::byte* to, std::uint64_t bytes);
  void write(std::uint64_t offset, const std::byte* from, std::uint64_t bytes);
  // Returns when all writes completed so far, by any channel, are durable.
  void sync();

  // Registers memory that transfers will use (at best an Arena), in pieces of 1 GiB, which saves
  // the kernel mapping it each time. Where the locked-memory limit denies it, a warning is added
  // instead. The memory must outlive the channel.
  void register_memory(std::span<std::byte> memory);
  const std::vector<std::string>& warnings() const { return ring_->warnings(); }

  std::uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }

 private:
  void check(std::uint64_t offset, std::uint64_t bytes) const;

  std::uint64_t store_bytes_;
  std::thread::id thread_;
  std::unique_ptr<IoRing> ring_;
  IoTransfer transfer_;
  std::atomic<std::uint64_t> bytes_read_{0};
  std::atomic<std::uint64_t> bytes_written_{0};
};

}  // namespace spillway
