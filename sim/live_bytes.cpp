#include "sim/live_bytes.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <numeric>
#include <tuple>

namespace spillway {

namespace {

struct Change {
  std::int64_t time_ns = 0;
  std::uint16_t series = 0;
  std::int64_t bytes = 0;  // negative: given back
};

// Who has had each byte of a tier last.
class Owners {
 public:
  // `buffer` takes the bytes from `begin` to `end`; `handed_over(owner, bytes)` is told of each
  // buffer that had some of them.
  template <class HandedOver>
  void take(std::uint64_t begin, std::uint64_t end, std::size_t buffer,
            const HandedOver& handed_over) {
    auto at = runs_.upper_bound(begin);
    if (at != runs_.begin() && std::prev(at)->second.end > begin) --at;
    while (at != runs_.end() && at->first < end) {
      const auto [first, run] = *at;
      handed_over(run.buffer, std::min(end, run.end) - std::max(begin, first));
      at = runs_.erase(at);
      if (first < begin) runs_.emplace(first, Run{begin, run.buffer});
      if (run.end > end) at = runs_.emplace(end, Run{run.end, run.buffer}).first;
    }
    runs_.emplace(begin, Run{end, buffer});
  }

 private:
  struct Run {
    std::uint64_t end;
    std::size_t buffer;
  };
  std::map<std::uint64_t, Run> runs_;  // by their first byte
};

}  // namespace

std::vector<LiveSample> live_bytes(
    const Schedule& schedule, std::span<const SimulatedTask> times, std::uint16_t count,
    const std::function<std::uint16_t(const BufferInfo&)>& series_of) {
  std::vector<Change> changes;
  std::vector<std::int64_t> live(count, 0);
  const auto& buffers = schedule.buffers();
  std::array<Owners, tier_count> owners;
  std::vector<std::int64_t> handed_over(buffers.size(), 0);  // before the buffer's last task ends
  std::vector<std::size_t> in_order;  // of first use, in which memory is given to them
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    const BufferInfo& buffer = buffers[k];
    if (buffer.persistent) live[series_of(buffer)] += static_cast<std::int64_t>(buffer.bytes);
    if (!buffer.persistent && buffer.first_use != none && buffer.bytes > 0) in_order.push_back(k);
  }
  std::stable_sort(in_order.begin(), in_order.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].first_use < buffers[b].first_use;
  });
  for (const std::size_t k : in_order) {
    const BufferInfo& buffer = buffers[k];
    const std::uint16_t series = series_of(buffer);
    const std::int64_t start = times[buffer.first_use].start_ns;
    changes.push_back({start, series, static_cast<std::int64_t>(buffer.bytes)});
    owners[static_cast<std::size_t>(buffer.tier)].take(
        buffer.offset, buffer.offset + buffer.bytes, k, [&](std::size_t owner, std::uint64_t some) {
          const BufferInfo& before = buffers[owner];
          if (times[before.last_use].end_ns <= start) return;
          const auto bytes = static_cast<std::int64_t>(some);
          changes.push_back(
              {std::max(start, times[before.first_use].start_ns), series_of(before), -bytes});
          handed_over[owner] += bytes;
        });
  }
  for (const std::size_t k : in_order) {
    const BufferInfo& buffer = buffers[k];
    const auto bytes = static_cast<std::int64_t>(buffer.bytes) - handed_over[k];
    if (bytes > 0) changes.push_back({times[buffer.last_use].end_ns, series_of(buffer), -bytes});
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
