#include "sim/live_bytes.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace spillway {

namespace {

struct Change {
  std::int64_t time_ns = 0;
  std::uint16_t series = 0;
  std::int64_t bytes = 0;  // negative: given back
};

}  // namespace

std::vector<LiveSample> live_bytes(
    const Schedule& schedule, std::span<const SimulatedTask> times, std::uint16_t count,
    const std::function<std::uint16_t(const BufferInfo&)>& series_of) {
  std::vector<Change> changes;
  std::vector<std::int64_t> live(count, 0);
  for (const BufferInfo& buffer : schedule.buffers()) {
    const std::uint16_t series = series_of(buffer);
    const auto bytes = static_cast<std::int64_t>(buffer.bytes);
    if (buffer.persistent) {
      live[series] += bytes;
    } else if (buffer.first_use != none) {
      changes.push_back({times[buffer.first_use].start_ns, series, bytes});
      changes.push_back({times[buffer.last_use].end_ns, series, -bytes});
    }
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tie(a.time_ns, a.series, a.bytes) < std::tie(b.time_ns, b.series, b.bytes);
  });
  std::vector<LiveSample> samples;
  for (std::uint16_t series = 0; series < count; ++series) {
    samples.push_back({0, series, static_cast<std::uint64_t>(live[series])});
  }
  std::vector<std::size_t> latest(count);  // the last sample of each series so far
  std::iota(latest.begin(), latest.end(), std::size_t{0});
  for (const Change& change : changes) {
    live[change.series] += change.bytes;
    // Clocks of recorded tasks may disagree a little.
    const auto bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, live[change.series]));
    // All changes of a series at one moment make one sample.
    if (samples[latest[change.series]].time_ns == change.time_ns) {
      samples[latest[change.series]].bytes = bytes;
    } else {
      latest[change.series] = samples.size();
      samples.push_back({change.time_ns, change.series, bytes});
    }
  }
  return samples;
}

}  // namespace spillway
