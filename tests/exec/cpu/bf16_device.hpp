// A device for tests of training in bf16 without a GPU: parameters, activations and gradients are
// kept in the widths that are planned, in memory the host cannot touch; the arithmetic is that of
// the CPU backend in fp32, sequence by sequence, and what it writes is rounded. Slow, and simple
// enough to be right: a layer's backward computes everything again from the layer's input and lays
// what was saved over it, so that saved and recomputed activations have the same bits.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "exec/cpu/host_optimizer.hpp"
#include "exec/cpu/model_cpu.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/device.hpp"
#include "tests/exec/cpu/hidden_memory.hpp"

namespace spillway::test {

class Bf16Device : public Device {
 public:
  Bf16Device(const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes,
             int threads = 1);

  std::string name() const override { return "cpu in bf16"; }
  std::span<std::byte> gpu_memory() override { return gpu_.span(); }
  std::span<std::byte> host_memory() override { return host_.span(); }
  void upload(std::uint64_t offset, std::span<const std::byte> from) override;
  void download(std::uint64_t offset, std::span<std::byte> to) override;
  void compute(const Task& task, const Operands& operands) override;
  void copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  std::uint64_t highest_written(Tier tier) const override {
    return tier == Tier::gpu ? gpu_.highest_written() : host_.highest_written();
  }

 private:
  using Floats = std::vector<float>;

  bool is_fp32(SavedMask tensor) const;  // whatever is planned for activations
  Operands reachable(const Operands& operands) const;
  // A unit's parameters in fp32.
  const float* parameters(const std::byte* from, std::int64_t unit);
  // Sequence `s` of an activation (b, T, C), widened.
  Floats activation(const std::byte* from, std::int64_t s) const;
  void write_activation(const Floats& from, std::byte* to, std::int64_t s) const;
  // Calls add(gradient in fp32, whether it is to be overwritten) for every sequence, and rounds the
  // sum where the gradient is planned in bf16.
  template <class Add>
  void accumulate(std::byte* gradient, std::int64_t unit, bool first_micro_batch, const Add& add);
  DropoutPlace dropout_place(const Task& task, const Operands& operands, std::int64_t s) const;
  void forward(const Task& task, const Operands& operands);
  void backward(const Task& task, const Operands& operands);
  void head(const Task& task, const Operands& operands);

  Problem problem_;   // as planned
  Problem sequence_;  // one sequence in fp32: what the arithmetic is done for
  std::unique_ptr<const ModelCpu> model_;
  HostOptimizer optimizer_;
  HiddenMemory gpu_;
  Arena host_;
  std::int64_t b_, t_, c_;
  Floats parameters_, gradient_;            // of a unit
  std::vector<std::byte> saved_, scratch_;  // of a sequence
  std::vector<SavedLayout> of_sequence_;    // all tensors of saved_
};

}  // namespace spillway::test
