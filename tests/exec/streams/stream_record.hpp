// What a test asks of a device of threads (tests/exec/streams/stream_device.hpp), and what it
// learns: which rules of exec/run/streams.hpp were broken.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace spillway::test {

// Outlives the device.
class StreamRecord {
 public:
  // From any thread; remembers the first few.
  void broken(std::string rule) noexcept {
    const std::lock_guard lock(mutex_);
    if (rules_.size() < 20) rules_.push_back(std::move(rule));
  }
  // All of them, one a line; empty when all was as it should be.
  std::string broken() const {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const std::string& rule : rules_) all += rule + '\n';
    return all;
  }

  // Relaxed: they order nothing.
  std::atomic<std::int64_t> works{0};    // pieces of work begun
  std::atomic<std::int64_t> calls{0};    // that may fail
  std::atomic<std::int64_t> waits{0};    // of one lane for a mark
  std::atomic<std::int64_t> notices{0};  // delivered
  std::atomic<std::int64_t> graphs{0}, replays{0};

 private:
  mutable std::mutex mutex_;  // taken only when a rule is broken, and at the end
  std::vector<std::string> rules_;
};

struct StreamOptions {
  std::uint64_t seed = 0;
  // Of a call, of a piece of work, of a notice: each is late by up to this much, now and then.
  int most_delay_us = 100;
  // The device does no work from this piece on (as StreamRecord counts), and its listener is told.
  std::int64_t fail_at_work = -1;
  // This call throws.
  std::int64_t fail_at_call = -1;
  // Called by a thread of the device's own, before it does this piece of work.
  std::int64_t call_at_work = -1;
  std::function<void()> call = {};
};

}  // namespace spillway::test
