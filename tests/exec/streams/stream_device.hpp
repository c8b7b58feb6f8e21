// A device whose gpu.compute and copy lanes are streams of threads
// (tests/exec/streams/thread_streams.hpp), and whose arithmetic is another device's: asynchronous,
// and bit-identical to that one.
#pragma once

#include <memory>

#include "exec/run/device.hpp"
#include "exec/run/training.hpp"
#include "tests/exec/streams/thread_streams.hpp"

namespace spillway::test {

class StreamDevice : public Device {
 public:
  // `record` outlives the device. `settings`: what the updates are made with, to find the step of
  // constants that are read when the update is done.
  StreamDevice(std::unique_ptr<Device> arithmetic, const OptimizerSettings& settings,
               StreamRecord& record, StreamOptions options);

  std::string name() const override { return arithmetic_->name() + " on streams"; }
  std::span<std::byte> gpu_memory() override { return arithmetic_->gpu_memory(); }
  std::span<std::byte> host_memory() override { return arithmetic_->host_memory(); }
  bool host_reaches_gpu_memory() const override { return arithmetic_->host_reaches_gpu_memory(); }
  void upload(std::uint64_t offset, std::span<const std::byte> from) override;
  void download(std::uint64_t offset, std::span<std::byte> to) override;
  void compute(const Task& task, const Operands& operands) override;
  void copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  Streams* streams() override { return &streams_; }
  std::uint64_t highest_written(Tier tier) const override {
    return arithmetic_->highest_written(tier);
  }

 private:
  void perform(const StreamWork& work);
  AdamStep step_of(const AdamConstants& constants);

  std::unique_ptr<Device> arithmetic_;
  const OptimizerSettings settings_;
  StreamRecord& record_;
  std::int64_t last_step_ = 0;  // whose constants were asked for
  ThreadStreams streams_;
};

// The same training on such a device; `record` outlives it.
TrainingOptions on_streams(TrainingOptions options, StreamRecord& record, StreamOptions streams);

}  // namespace spillway::test
