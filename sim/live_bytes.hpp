// How many bytes of buffers are live over simulated time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// From this moment on, so many bytes of a series are live.
struct LiveSample {
  std::int64_t time_ns = 0;
  std::uint16_t series = 0;
  std::uint64_t bytes = 0;
};

// `times` are those of all tasks, simulated or recorded. Each buffer is in the series
// `series_of(buffer)`, one of 0 .. count - 1. Persistent buffers are live throughout, transient
// ones from the start of their first task to the end of their last, but for bytes that another
// buffer takes before that: those are its from then on, so that no byte counts twice. Begins with
// one sample of each series at time 0; then in order of time, and of series where several change at
// one moment.
std::vector<LiveSample> live_bytes(
    const Schedule& schedule, std::span<const SimulatedTask> times, std::uint16_t count,
    const std::function<std::uint16_t(const BufferInfo&)>& series_of);

}  // namespace spillway
