#include "sim/to_trace.hpp"

#include <algorithm>
#include <tuple>

namespace spillway {

namespace {

template <class Enum>
std::vector<std::string> names(int count) {
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.emplace_back(to_string(static_cast<Enum>(i)));
  return result;
}

struct Change {
  std::int64_t time_ns = 0;
  std::uint16_t tier = 0;
  std::int64_t bytes = 0;  // negative: given back
};

}  // namespace

std::vector<MemorySample> memory_samples(const Schedule& schedule, const SimulationResult& result) {
  std::vector<Change> changes;
  std::array<std::int64_t, tier_count> live{};
  for (const BufferInfo& buffer : schedule.buffers()) {
    const auto tier = static_cast<std::uint16_t>(buffer.tier);
    const auto bytes = static_cast<std::int64_t>(buffer.bytes);
    if (buffer.persistent) {
      live[tier] += bytes;
    } else if (buffer.first_use != none) {
      changes.push_back({result.tasks[buffer.first_use].start_ns, tier, bytes});
      changes.push_back({result.tasks[buffer.last_use].end_ns, tier, -bytes});
    }
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tie(a.time_ns, a.tier, a.bytes) < std::tie(b.time_ns, b.tier, b.bytes);
  });
  std::vector<MemorySample> samples;
  for (std::uint16_t tier = 0; tier < tier_count; ++tier) {
    samples.push_back({0, tier, static_cast<std::uint64_t>(live[tier])});
  }
  std::array<std::size_t, tier_count> latest{0, 1, 2};  // the tier's last sample so far
  for (const Change& change : changes) {
    live[change.tier] += change.bytes;
    // Clocks of recorded tasks may disagree a little.
    const auto bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, live[change.tier]));
    // All changes of a tier at one moment make one sample.
    if (samples[latest[change.tier]].time_ns == change.time_ns) {
      samples[latest[change.tier]].bytes = bytes;
    } else {
      latest[change.tier] = samples.size();
      samples.push_back({change.time_ns, change.tier, bytes});
    }
  }
  return samples;
}

Trace to_trace(const Schedule& schedule, const SimulationResult& result) {
  Trace trace;
  const Workload& workload = schedule.problem().workload;
  trace.lanes = names<Lane>(lane_count_of(workload.ranks));
  trace.kinds = names<TaskKind>(task_kind_count_of(workload.ranks, workload.gradient_groups));
  trace.phases = names<Phase>(phase_count);
  trace.tiers = names<Tier>(tier_count);
  const std::span<const Task> tasks = schedule.tasks();
  trace.spans.reserve(tasks.size());
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const Task& task = tasks[t];
    Span span;
    span.task = static_cast<std::uint32_t>(t);
    span.lane = static_cast<std::uint16_t>(task.lane);
    span.kind = static_cast<std::uint16_t>(task.kind);
    span.phase = static_cast<std::uint16_t>(task.phase);
    span.step = task.step;
    span.layer = task.layer;
    span.micro_batch = task.micro_batch;
    span.start_ns = result.tasks[t].start_ns;
    span.end_ns = result.tasks[t].end_ns;
    span.bytes = task.bytes;
    span.flops = task.flops;
    span.params = task.params;
    trace.spans.push_back(span);
  }
  trace.memory = memory_samples(schedule, result);
  return trace;
}

}  // namespace spillway
