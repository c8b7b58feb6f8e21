// Times work that a device does on lanes that are streams, by the device's own clock.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "exec/run/device.hpp"
#include "exec/run/streams.hpp"

namespace spillway {

// Work on streams is issued from one thread here; nothing else may use the device meanwhile.
class StreamTimer {
 public:
  // `device` has streams.
  explicit StreamTimer(Device& device);

  // One piece of work between two marks of a lane, and its times once finish() has returned.
  std::size_t issue(const Task& task, const std::function<void()>& work);
  std::size_t issue_task(const Task& task, const Operands& operands);
  std::size_t issue_copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes);
  // What is issued to `lane` from here on starts when that piece is done.
  void wait(Lane lane, std::size_t piece) { streams_.wait(lane, piece); }
  // Blocks until all that was issued is done.
  void finish();
  Streams::Times times(std::size_t piece) { return streams_.times(piece); }
  std::int64_t duration(std::size_t piece) {
    const Streams::Times one = times(piece);
    return one.end_ns - one.start_ns;
  }
  // Forgets all pieces, of which all are done: their marks are used again. Times are the more
  // exact the shorter ago this was.
  void clear() {
    used_ = 0;
    streams_.set_clock();
  }
  Streams& streams() { return streams_; }

  static constexpr std::size_t most_pieces = 4096;

 private:
  Device& device_;
  Streams& streams_;
  std::size_t used_ = 0;
};

}  // namespace spillway
