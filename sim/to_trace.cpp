#include "sim/to_trace.hpp"

#include "policies/schedule/program.hpp"
#include "sim/live_bytes.hpp"

namespace spillway {

namespace {

template <class Enum>
std::vector<std::string> names(int count) {
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.emplace_back(to_string(static_cast<Enum>(i)));
  return result;
}

}  // namespace

std::vector<MemorySample> memory_samples(const Schedule& schedule, const SimulationResult& result) {
  std::vector<MemorySample> samples;
  for (const LiveSample& live :
       live_bytes(schedule, result.tasks,
                  static_cast<std::uint16_t>(schedule.problem().machine.memories()),
                  [](const BufferInfo& one) { return static_cast<std::uint16_t>(one.tier); }))
    samples.push_back({live.time_ns, live.series, live.bytes});
  return samples;
}

Trace to_trace(const Schedule& schedule, const SimulationResult& result) {
  Trace trace;
  const Workload& workload = schedule.problem().workload;
  trace.lanes = names<Lane>(static_cast<int>(lane_count_of(schedule.problem())));
  trace.kinds = names<TaskKind>(
      task_kind_count_of(workload.ranks, workload.gradient_groups, workload.pipeline));
  trace.phases = names<Phase>(phase_count);
  trace.tiers = names<Tier>(schedule.problem().machine.memories());
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
