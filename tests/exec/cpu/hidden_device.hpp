// The CPU backend with GPU memory that the host cannot touch, as with a GPU's: whatever does not go
// through the device faults.
#pragma once

#include <cstring>
#include <string>

#include "exec/cpu/cpu_tasks.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/device.hpp"
#include "tests/exec/cpu/hidden_memory.hpp"

namespace spillway::test {

class HiddenDevice : public Device {
 public:
  HiddenDevice(const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes,
               int threads = 1)
      : tasks_(problem, threads), gpu_(gpu_bytes), host_(host_bytes, "host memory") {}

  std::string name() const override { return "cpu with hidden memory"; }
  std::span<std::byte> gpu_memory() override { return gpu_.span(); }
  std::span<std::byte> host_memory() override { return host_.span(); }
  bool host_reaches_gpu_memory() const override { return false; }
  void upload(std::uint64_t offset, std::span<const std::byte> from) override {
    copy(Lane::pcie_h2d, gpu_.span().data() + offset, from.data(), from.size());
  }
  void download(std::uint64_t offset, std::span<std::byte> to) override {
    copy(Lane::pcie_d2h, to.data(), gpu_.span().data() + offset, to.size());
  }
  void compute(const Task& task, const Operands& operands) override {
    Operands o = operands;
    for (std::byte** address :
         {&o.parameters, &o.gradient, &o.head_gradient, &o.optimizer_state, &o.input, &o.output,
          &o.saved, &o.activation_gradient, &o.scratch, &o.weight_operands})
      *address = gpu_.reach(*address);
    tasks_.compute(task, o);
  }
  void copy(Lane, std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    std::memcpy(gpu_.reach(to), gpu_.reach(from), bytes);
  }
  std::uint64_t highest_written(Tier tier) const override {
    return tier == Tier::gpu ? gpu_.highest_written() : host_.highest_written();
  }

 private:
  CpuTasks tasks_;
  HiddenMemory gpu_;
  Arena host_;
};

}  // namespace spillway::test
