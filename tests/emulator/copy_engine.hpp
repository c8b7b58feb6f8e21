// The device's copy engines, one for each direction between host and device, as GPUs have them: a
// copy joins the engine's queue when its stream has come to it, whatever the stream, and copies run
// one at a time, in the order in which they joined.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

#include "tests/emulator/memory.hpp"

namespace emulator {

class CopyEngine {
 public:
  // On a stream's thread: joins the queue, waits for its turn, and copies.
  void run(const std::function<void()>& copy);
  // While there are holds, the engine is busy with something else.
  void hold(int change);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t joined_ = 0, served_ = 0;
  int holds_ = 0;
};

// Null where no engine copies: within the device, or within the host.
CopyEngine* engine_between(Place source, Place target);

}  // namespace emulator
