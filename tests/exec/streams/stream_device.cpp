#include "tests/exec/streams/stream_device.hpp"

#include <cstring>

#include "exec/cpu/cpu_device.hpp"

namespace spillway::test {

StreamDevice::StreamDevice(std::unique_ptr<Device> arithmetic, const OptimizerSettings& settings,
                           StreamRecord& record, StreamOptions options)
    : arithmetic_(std::move(arithmetic)),
      settings_(settings),
      record_(record),
      streams_(record, std::move(options), [this](const StreamWork& work) { perform(work); },
               {arithmetic_->gpu_memory(), arithmetic_->host_memory()}) {}

void StreamDevice::upload(std::uint64_t offset, std::span<const std::byte> from) {
  if (ThreadLane::in_notice()) record_.broken("upload: a notice does not call the device");
  arithmetic_->upload(offset, from);
}

void StreamDevice::download(std::uint64_t offset, std::span<std::byte> to) {
  if (ThreadLane::in_notice()) record_.broken("download: a notice does not call the device");
  arithmetic_->download(offset, to);
}

void StreamDevice::compute(const Task& task, const Operands& operands) {
  if (!streams_.lanes().contains(task.lane)) return arithmetic_->compute(task, operands);
  StreamWork work;
  work.task = task;
  work.operands = operands;
  streams_.issue(task.lane, std::move(work));
}

void StreamDevice::copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  StreamWork work;
  work.task.lane = lane;
  work.to = to;
  work.from = from;
  work.bytes = bytes;
  streams_.issue(lane, std::move(work));
}

void StreamDevice::perform(const StreamWork& work) {
  if (work.to != nullptr) return arithmetic_->copy(work.task.lane, work.to, work.from, work.bytes);
  Operands o = work.operands;
  if (o.text != nullptr) {
    const MicroBatchText text = ThreadStreams::text_of(o.text);
    o.tokens = text.tokens;
    o.targets = text.targets;
    o.starts = text.starts;
    o.counted_tokens = text.counted_tokens;
  }
  if (work.task.kind == TaskKind::optimizer) o.adam = step_of(*o.adam_constants);
  arithmetic_->compute(work.task, o);
}

// A graph is replayed with other constants than it was captured with. Calls: of one lane.
AdamStep StreamDevice::step_of(const AdamConstants& constants) {
  constexpr std::int64_t most_steps = 100'000;
  const auto is_of = [&](std::int64_t step) {
    const AdamConstants found = adam_constants(settings_.at(step));
    return std::memcmp(&found, &constants, sizeof found) == 0;
  };
  if (is_of(last_step_)) return settings_.at(last_step_);
  for (std::int64_t i = 1; i <= most_steps; ++i) {
    const std::int64_t step = (last_step_ + i) % most_steps;
    if (!is_of(step)) continue;
    last_step_ = step;
    return settings_.at(step);
  }
  record_.broken("an update has the constants of no step");
  return settings_.at(0);
}

TrainingOptions on_streams(TrainingOptions options, StreamRecord& record, StreamOptions streams) {
  const auto make = options.make_device;
  options.optimizer.seed = options.seed;
  options.make_device = [make, settings = options.optimizer, &record, streams](
                            const Problem& problem, std::uint64_t gpu, std::uint64_t host) {
    auto arithmetic =
        make ? make(problem, gpu, host) : std::make_unique<CpuDevice>(problem, gpu, host);
    return std::make_unique<StreamDevice>(std::move(arithmetic), settings, record, streams);
  };
  return options;
}

}  // namespace spillway::test
