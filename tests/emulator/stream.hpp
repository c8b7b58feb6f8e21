// Streams: a queue and a thread each. Events: what was last recorded.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/emulator/random.hpp"

namespace emulator {

// One call of cudaEventRecord. Waiting for an event is waiting for the record it held at the call.
struct Record {
  std::atomic<bool> done{false};
  std::chrono::steady_clock::time_point time;
  void finish();
  void wait() const { done.wait(false, std::memory_order_acquire); }
  bool is_done() const { return done.load(std::memory_order_acquire); }
};

struct Operation {
  std::function<void(std::uint64_t seed)> run;
  bool even_after_failure = false;  // others are left out once the device has failed
};

struct Capture;

// The stream a handle means; null when it means none. Throws nothing.
CUstream_st* find_stream(cudaStream_t handle);
// Enqueues, or adds to the graph that the stream is being captured into.
cudaError_t submit(CUstream_st& stream, Operation operation);
// Waits until everything enqueued so far on the stream, on all of a device, or on all was run.
void drain(CUstream_st& stream);
void drain_device(int device);
void drain_all();

std::shared_ptr<CUevent_st> find_event(cudaEvent_t handle);

}  // namespace emulator

struct CUstream_st {
  CUstream_st(std::uint64_t number, unsigned flags);
  ~CUstream_st();  // what was enqueued is run first

  std::uint64_t enqueue(emulator::Operation operation);  // its ticket
  void wait(std::uint64_t ticket);
  bool idle();
  std::uint64_t issued();
  void hold(int change);
  // A copy of it joins the queue of a copy engine, or leaves it.
  void stands_in_queue(bool does);
  bool wait_until_idle_or_in_queue();    // whether it is in one
  static CUstream_st* of_this_thread();  // whose work this thread runs

  const unsigned flags;
  const int device;
  const bool legacy;  // the default stream
  // The capture this stream takes part in, and the nodes that its next one depends on; guarded by
  // the mutex of captures.
  std::shared_ptr<emulator::Capture> capture;
  std::vector<std::size_t> frontier;

 private:
  void serve();

  const std::uint64_t number_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<emulator::Operation> queue_;
  std::uint64_t issued_ = 0, completed_ = 0;
  int holds_ = 0;
  bool closing_ = false, in_queue_ = false;
  std::thread thread_;
};

struct CUevent_st {
  unsigned flags = 0;
  std::mutex mutex;
  std::shared_ptr<emulator::Record> latest;  // none: never recorded
  // Last recorded in a capture: which, and after which nodes.
  std::shared_ptr<emulator::Capture> capture;
  std::vector<std::size_t> frontier;
};
