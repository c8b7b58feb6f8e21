#include "tests/emulator/copy_engine.hpp"

#include "tests/emulator/emulator.hpp"
#include "tests/emulator/stream.hpp"

namespace emulator {
namespace {

// Live as long as threads of streams do.
CopyEngine& to_device() {
  static auto* one = new CopyEngine;
  return *one;
}
CopyEngine& from_device() {
  static auto* one = new CopyEngine;
  return *one;
}
CopyEngine& engine_of(CopyDirection direction) {
  return direction == CopyDirection::to_device ? to_device() : from_device();
}

}  // namespace

void CopyEngine::run(const std::function<void()>& copy) {
  std::unique_lock lock(mutex_);
  const std::uint64_t ticket = joined_++;
  const auto is_next = [&] { return served_ == ticket && holds_ == 0; };
  if (!is_next()) {
    CUstream_st::of_this_thread()->stands_in_queue(true);
    changed_.wait(lock, is_next);
    CUstream_st::of_this_thread()->stands_in_queue(false);
  }
  lock.unlock();  // others may join meanwhile
  copy();
  lock.lock();
  ++served_;
  changed_.notify_all();
}

void CopyEngine::hold(int change) {
  {
    const std::lock_guard lock(mutex_);
    holds_ += change;
  }
  changed_.notify_all();
}

CopyEngine* engine_between(Place source, Place target) {
  if ((source == Place::device) == (target == Place::device)) return nullptr;
  return target == Place::device ? &to_device() : &from_device();
}

// --- emulator.hpp

HoldCopies::HoldCopies(CopyDirection direction) : direction_(direction) {
  engine_of(direction_).hold(1);
}
HoldCopies::~HoldCopies() { engine_of(direction_).hold(-1); }

bool waits_for_copies(cudaStream_t handle) {
  CUstream_st* const stream = find_stream(handle);
  return stream != nullptr && stream->wait_until_idle_or_in_queue();
}

}  // namespace emulator
