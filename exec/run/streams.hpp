// Lanes that a device runs by itself: tasks are issued in order and done later, in that order,
// while the threads that issue go on. On CUDA these are streams.
//
// Order between lanes is kept by marks, a pair of points in a lane's work around each task: work
// that is issued after wait(lane, mark) starts when the marked task has ended. Nothing here makes
// the host wait for the device but drain().
//
// Threads: calls that name a lane come from one thread per lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "policies/schedule/schedule.hpp"

namespace spillway {

// The text of a micro-batch, (sequences, T) each: exec/data/batches.hpp says what they are.
struct MicroBatchText {
  const std::int32_t *tokens = nullptr, *targets = nullptr;
  const std::int32_t* starts = nullptr;  // null: no borders
  std::int64_t sequences = 0, sequence_length = 0;
  std::int64_t counted_tokens = 0;  // targets that count in the whole step

  std::int64_t rows() const { return sequences * sequence_length; }
};

class Streams {
 public:
  virtual ~Streams() = default;

  virtual LaneSet lanes() const = 0;

  // From here on there are marks 0 .. count - 1. Called while nothing runs.
  virtual void reserve_marks(std::size_t count) = 0;
  // Around the work of a task, which is named after it in profilers.
  virtual void begin(Lane lane, std::size_t mark, const Task& task, TaskId id) = 0;
  virtual void end(Lane lane, std::size_t mark) = 0;
  virtual void wait(Lane lane, std::size_t mark) = 0;

  // Calls function(argument), which must not call the device and must not throw, on a thread of the
  // device's own, once all work issued to the lane so far is done; in order of the calls.
  virtual void notify(Lane lane, void (*function)(void*), void* argument) = 0;

  // Blocks until all work issued to the lane is done and has been notified of, or has failed: at
  // the end of a run that was broken off. Never throws.
  virtual void drain(Lane lane) noexcept = 0;

  // Times of the device, as now_ns() counts. set_clock() is called while nothing runs; times only
  // for marks whose work is known to be done, on one thread, roughly in the order of time.
  struct Times {
    std::int64_t start_ns, end_ns;
  };
  virtual void set_clock() = 0;
  virtual Times times(std::size_t mark) = 0;

  // What is issued to the lane between both is not run but kept, to be replayed as a whole any
  // number of times; returns its number.
  virtual void begin_graph(Lane lane) = 0;
  virtual std::size_t end_graph(Lane lane) = 0;
  virtual void replay(Lane lane, std::size_t graph) = 0;

  // The text of a micro-batch of so many tokens in the form that tasks take (Operands::text).
  virtual std::size_t text_bytes(std::int64_t rows, bool has_borders) const = 0;
  virtual void stage_text(const MicroBatchText& text, std::byte* to) = 0;

  // Lets tasks read and write `memory` of the host until the result is destroyed.
  virtual std::shared_ptr<void> register_memory(std::span<std::byte> memory) = 0;

  // Called, on any thread and at most once, when work that was issued has failed.
  virtual void on_failure(std::function<void(std::exception_ptr)> listener) = 0;
};

}  // namespace spillway
