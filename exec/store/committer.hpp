// Makes finished steps durable, beside training: a thread that waits until a version of the
// optimizer state is whole and its step reported, and then commits it.
//
//   1. copies to the store what rests in memory (state on the ssd is there already: no byte is
//      written twice)
//   2. fdatasync of every stripe: all data of the version is durable
//   3. writes the record into its slot, fdatasync: the version counts
//
// Lanes go on meanwhile; VersionGate holds back only what would overwrite what is not safe yet.
// The commit before may be read by somebody, too (exec/run/export_lock.hpp): it is overwritten once
// MayOverwrite says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/run/arena.hpp"
#include "exec/run/device.hpp"
#include "exec/store/commit_record.hpp"
#include "exec/store/ssd_store.hpp"
#include "exec/store/version_gate.hpp"

namespace spillway {

// Asked on the committer's thread, again and again until it says yes, once a version is durable:
// whether what was committed before it may be overwritten.
using MayOverwrite = std::function<bool(std::int64_t version)>;
// Asked in the same way, before: whether what is durable here is so everywhere. Only then it is
// committed, and nothing of the version before is overwritten.
using CommittedByAll = std::function<bool(std::int64_t version)>;

class Committer {
 public:
  // Starts the thread. All arguments must outlive it; nothing is committed yet. `may_overwrite` may
  // be empty: always; and so may `by_all`.
  Committer(SsdStore& store, const StoreIdentity& identity, ChunkTable& chunks, Device& device,
            VersionGate& gate, MayOverwrite may_overwrite = {}, CommittedByAll by_all = {});
  // Ends the thread; a commit in progress is finished, nothing else is begun.
  ~Committer();
  Committer(const Committer&) = delete;
  Committer& operator=(const Committer&) = delete;

  // Called after each commit and after a failure, on the committer's thread; at once if it has
  // failed already. Empty: nobody is called from the return on.
  void on_change(std::function<void()> listener);

  // The last version that is durable.
  std::int64_t committed() const { return committed_.load(std::memory_order_acquire); }
  // Blocks until `version` (a commit point) is durable. Rethrows the failure that prevents it.
  void wait_for(std::int64_t version);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::exception_ptr error() const { return error_; }  // once failed()
  // Bytes that commits have written beside training: copies of what rests in memory, and records.
  std::uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }

 private:
  void main();
  void commit(SsdStore::Channel& channel, std::int64_t version);
  void notify();

  SsdStore& store_;
  const StoreIdentity& identity_;
  ChunkTable& chunks_;
  Device& device_;
  VersionGate& gate_;
  MayOverwrite may_overwrite_;
  CommittedByAll by_all_;
  Arena record_, staging_;
  std::mutex listener_mutex_;  // taken once per commit
  std::function<void()> listener_;
  std::atomic<std::int64_t> committed_;
  std::atomic<std::uint64_t> bytes_written_{0};
  std::atomic<std::uint32_t> news_{0};
  std::atomic<bool> failed_{false}, closing_{false};
  std::exception_ptr error_;
  std::thread thread_;
};

// Copies what rests in memory to copy `copy` of its parts in the store, in pieces of the staging's
// size. Returns the bytes written.
std::uint64_t capture_memory(SsdStore::Channel& channel, std::span<const StatePart> parts,
                             const ChunkTable& chunks, Device& device, int copy, Arena& staging);

// Writes the record of a version without a thread: of version 0 before training starts, or of a
// version whose parts were all just written. Everything written so far is made durable first.
void commit_now(SsdStore::Channel& channel, const StoreIdentity& identity, const ChunkTable& chunks,
                std::int64_t version, std::int64_t epoch);

}  // namespace spillway
