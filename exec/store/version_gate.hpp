// Lets an update overwrite optimizer state only when nothing is lost by it, and knows when a
// version is whole.
//
// Version v of the state is what v updates make of it. Each part of the state (where a run of
// elements rests) is written once per version, by one task: its writer. A writer of version v
// enters before it starts and leaves when it is done; the version is whole when all have left.
//
// * A writer of the first version after a commit point waits until that commit is durable. State on
//   the ssd alternates between two copies, and such a writer would touch the older one; state in
//   memory is overwritten in place, and its commit is a copy of it. So training is never further
//   ahead of the last commit than an interval and the step whose update waits.
// * A version is committed once the step that made it was reported: whoever goes on from a commit
//   has the results of all steps before it.
// * After request_stop() no writer of a later version than the one agreed on starts: when that one
//   is whole, the state is exactly that of a finished step.
//
// Threads: lanes enter and leave, one thread commits, any thread may request a stop. Entering
// without waiting is two atomic loads; waiting is a futex.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "exec/store/commit_points.hpp"

namespace spillway {

class VersionGate {
 public:
  // `parts`: parts of the state. Without `durable` nothing waits for commits.
  VersionGate(CommitPoints points, std::uint32_t parts, bool durable);

  const CommitPoints& points() const { return points_; }

  // -- lanes --
  // Returns when a writer of `version` may start; false: the run is over, write nothing.
  bool enter(std::int64_t version);
  // Whether `version` will become whole: it counts as begun from here on, unless a stop before it
  // was agreed on. For whoever promises it before its first writer has entered.
  bool begin(std::int64_t version);
  // `parts`: how many parts of the version it wrote. Who tells of a lane may be later than who
  // tells of another: the last writer of a version may leave after that of the next one, and both
  // become whole then.
  void leave(std::int64_t version, std::uint32_t parts = 1);
  // The step that makes `version` has been reported.
  void reported(std::int64_t version);

  // -- stopping --
  // No version after the returned one is begun: the latest that a writer has begun, at least
  // `at_least`. Later calls return the same.
  std::int64_t request_stop(std::int64_t at_least);
  // For several ranks that agree on one version: until they have, no version is begun that was not
  // begun before. Returns what request_stop() would; stop_at() ends it.
  std::int64_t hold(std::int64_t at_least);
  void stop_at(std::int64_t version);
  // The version agreed on, or -1 while nobody asked.
  std::int64_t stop_version() const;
  // Nothing more may be written: all who wait return false.
  void halt();
  bool halted() const { return halted_.load(std::memory_order_acquire); }

  // -- committing --
  std::int64_t whole_version() const { return whole_.load(std::memory_order_acquire); }
  // Whether `version` is whole and reported.
  bool may_commit(std::int64_t version) const {
    return whole_version() >= version && reported_.load(std::memory_order_acquire) >= version;
  }
  // The version that is to be committed next.
  std::int64_t next_commit(std::int64_t committed) const;
  // `version` is durable.
  void committed(std::int64_t version);

  // A counter that moves whenever something above may have changed, to wait on.
  std::atomic<std::uint32_t>& changes() { return changes_; }

 private:
  void changed();
  enum class Begun : std::uint8_t { yes, no, held };
  Begun try_begin(std::int64_t version);
  std::int64_t end_begun(std::int64_t at_least, std::int64_t state);

  CommitPoints points_;
  std::uint32_t parts_;
  bool durable_;
  // Four times the latest version begun, and what of those after it.
  static constexpr std::int64_t goes_on = 0, stops = 1, is_held = 2, states = 4;
  std::atomic<std::int64_t> begun_;
  // Parts written, by version. Writers are at work on four versions at most; a few more, because
  // the counter of a version that is whole is cleared a moment after.
  static constexpr std::size_t in_flight = 8;
  std::atomic<std::uint32_t>& left(std::int64_t version) {
    return left_[static_cast<std::size_t>(version) % in_flight];
  }
  std::array<std::atomic<std::uint32_t>, in_flight> left_{};
  std::atomic<std::int64_t> whole_, reported_;
  std::atomic<std::int64_t> committed_epoch_;
  std::atomic<bool> halted_{false};
  std::atomic<std::uint32_t> changes_{0};
};

}  // namespace spillway
