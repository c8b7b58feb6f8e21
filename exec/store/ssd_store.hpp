// The `ssd` tier: one address space striped over any number of directories, one file in each, no
// RAID; and beside the first of them, where asked for, a small file for commit records. Every file
// begins with a header that says whose it is (exec/store/store_header.hpp).
//
// All blocks are reserved at construction, so that a full disk shows before the first step. Lanes
// transfer through a Channel each. A write is durable only after sync().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "exec/io/io_choice.hpp"
#include "exec/io/io_transfer.hpp"
#include "exec/store/store_file.hpp"

namespace spillway {

struct SsdStoreOptions {
  std::uint64_t stripe_bytes = std::uint64_t{1} << 20;  // multiple of 4096, at most 1 GiB
  unsigned queue_depth = 32;                            // requests in flight per channel, 1 .. 4096
  bool direct =
      true;  // unbuffered I/O; where a file system cannot, the page cache is used, with a warning
  bool keep = false;  // leave the files behind at the end
  bool reuse =
      false;  // open the files of an earlier run (kept, or left by a crash), contents unchanged
  // With reuse and keep: to be read only, beside a run that may be at work and whose lock is not
  // asked for. What is read may be overwritten meanwhile (exec/run/export_lock.hpp).
  bool read_only = false;
  // Whose the files are, for their headers. The generation counts the stores that a run has had;
  // two of them may lie in one directory while one becomes the other.
  RunIdentity run;
  std::uint64_t generation = 0;
  bool durable = false;  // it will hold commits: nobody else replaces its files lightly
  // Called for each file that is there and is not empty, before anything is written; throws where
  // it must not be replaced (null header: it is no file of a store). By default files that hold no
  // commits, left by a run that crashed, may be.
  std::function<void(const std::filesystem::path& file, const StoreHeader* header)>
      require_replaceable;
  std::uint64_t record_bytes = 0;  // of the file for commit records; 0: there is none
  // Which directories have which addresses, where drives are of several sets; empty: all have all.
  std::vector<FileSet> sets = {};
  // Checksums of the whole address space, which must outlive the store; null: nothing is checked.
  ChunkTable* chunks = nullptr;
  // Makes the ring of a channel (exec/io/io_choice.hpp); tests put one in between that fails.
  RingFactory make_ring = make_usual_ring;
};

// The files of a store, by directory: what a run creates and a later one finds. Generations take
// turns with two names.
std::string stripe_name(std::size_t index, std::uint64_t generation);
std::string record_name(std::uint64_t generation);
std::filesystem::path store_file(const std::filesystem::path& directory, std::size_t index,
                                 std::uint64_t generation);
std::filesystem::path record_file(const std::filesystem::path& first_directory,
                                  std::uint64_t generation);
// Throws InputError for a file that is no store's, or that holds, or is to hold, commits.
void require_no_commits(const std::filesystem::path& file, const StoreHeader* header);

class SsdStore {
 public:
  using Options = SsdStoreOptions;
  class Channel;

  // A store of `bytes` (rounded up to 4096) in the files DIRECTORY[i]/spillway-store-<i>.bin, zero
  // unless reused. A file of that name that no run holds is replaced where
  // Options::require_replaceable lets it. On failure nothing that was created stays. Throws
  // InputError (no or missing directory, bad option, a file that is not to be replaced, or another
  // run's that is to be reused), MachineError (not enough room, in use by another run, other sizes
  // than to be reused, permissions).
  SsdStore(const std::vector<std::filesystem::path>& directories, std::uint64_t bytes,
           Options options = {});
  // Where files are removed: the record first, and the first stripe last, so that what a crash
  // leaves of them is known to be of no use.
  ~SsdStore();
  SsdStore(const SsdStore&) = delete;
  SsdStore& operator=(const SsdStore&) = delete;

  std::uint64_t size() const { return bytes_; }
  // Of a set of drives: how many bytes there are, and their first address.
  std::uint64_t size_of(int set) const;
  std::uint64_t begin_of(int set) const {
    return striping_.sets.empty() ? 0 : striping_.sets.at(static_cast<std::size_t>(set)).from;
  }
  const Striping& striping() const { return striping_; }
  // Whether the files are kept when the store is closed.
  void set_keep(bool keep);
  // Throws MachineError naming a file that no longer lies where it was created: its directory was
  // removed or unmounted, and what is written to it would be lost.
  void require_files() const;
  const Options& options() const { return options_; }
  std::vector<std::filesystem::path> files() const;
  // What does not work here as it should, for the user to read. A Channel has warnings of its own.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  using Plan = std::vector<PlannedFile>;
  StoreHeader header_of(std::size_t file) const;
  void reserve(const Plan& plan);
  void open_again(const Plan& plan);
  void use_direct();

  Options options_;
  std::uint64_t bytes_ = 0;
  std::string first_directory_;
  Striping striping_;
  std::vector<StoreFile> files_;  // of the stripes, then that of the commit records
  std::vector<std::string> warnings_;
};

// One lane's way to the store, with a ring of its own. Made, used and registered with memory
// on one and the same thread; the counters and nothing else may be read from others. Must not
// outlive the store.
class SsdStore::Channel {
 public:
  // Throws MachineError when no such ring can be made.
  explicit Channel(const SsdStore& store) : Channel(store, store.options_.make_ring) {}
  // Through another ring than the store's own.
  Channel(const SsdStore& store, const RingFactory& make_ring);

  // Both block until all `bytes` have been transferred, and allocate nothing. `offset`, `bytes` and
  // the address are multiples of 4096, and the run lies inside the store. Throw MachineError with
  // the file and its offset; what was transferred before that is unspecified.
  void read(std::uint64_t offset, std::byte* to, std::uint64_t bytes);
  void write(std::uint64_t offset, const std::byte* from, std::uint64_t bytes);
  // Returns when all writes completed so far, by any channel, are durable.
  void sync();
  // Writes and syncs the file of commit records: bytes [offset, offset + bytes) after its header,
  // all multiples of 4096.
  void write_record(std::uint64_t offset, const std::byte* from, std::uint64_t bytes);
  void sync_record();

  // Registers memory that transfers will use (at best an Arena), in pieces of 1 GiB, which saves
  // the kernel mapping it each time. Where the locked-memory limit denies it, a warning is added
  // instead. The memory must outlive the channel.
  void register_memory(std::span<std::byte> memory);
  const std::vector<std::string>& warnings() const { return ring_->warnings(); }
  // Chunks that had to be read twice because their checksum did not match the first time.
  std::uint64_t read_again() const { return transfer_.read_again(); }

  std::uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }

 private:
  void check(std::uint64_t offset, std::uint64_t bytes) const;

  std::uint64_t store_bytes_;
  std::uint32_t stripe_files_;
  std::uint64_t record_bytes_;
  std::thread::id thread_;
  std::unique_ptr<IoRing> ring_;
  IoTransfer transfer_;
  std::atomic<std::uint64_t> bytes_read_{0};
  std::atomic<std::uint64_t> bytes_written_{0};
};

}  // namespace spillway
