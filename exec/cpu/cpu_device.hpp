// The CPU twin of a GPU: "GPU memory" is an arena of the size planned, kernels run on the lane's
// thread, copies are memcpy between the two arenas. With more than one thread, matrix products and
// the optimizer's updates are shared by as many each; results are the same.
#pragma once

#include "exec/cpu/cpu_tasks.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/device.hpp"

namespace spillway {

class CpuDevice : public Device {
 public:
  // Takes arenas of these sizes at once. Throws MachineError when the machine cannot give them,
  // InputError when the problem is not one that can be trained.
  CpuDevice(const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes,
            int threads = 1);

  std::string name() const override;
  std::span<std::byte> gpu_memory() override { return gpu_.span(); }
  std::span<std::byte> host_memory() override { return host_.span(); }
  void compute(const Task& task, const Operands& operands) override;
  void copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes) override;

  std::uint64_t highest_written(Tier tier) const override {
    return (tier == Tier::gpu ? gpu_ : host_).highest_written();
  }

 private:
  CpuTasks tasks_;
  Arena gpu_, host_;
};

}  // namespace spillway
