// The compute tasks of a schedule on the CPU, on operands that are laid out as planned.
#pragma once

#include <memory>
#include <variant>

#include "exec/cpu/host_optimizer.hpp"
#include "exec/cpu/model_cpu.hpp"
#include "exec/cpu/model_cpu_bf16.hpp"
#include "exec/run/device.hpp"

namespace spillway {

class CpuTasks {
 public:
  // `threads`: how many share a matrix product, and how many an update. Throws InputError where the
  // problem is not one that can be trained.
  explicit CpuTasks(const Problem& problem, int threads = 1);

  void compute(const Task& task, const Operands& operands) const;
  const CpuKernels& kernels() const;

 private:
  using Fp32 = std::unique_ptr<const ModelCpu>;
  using Bf16 = std::unique_ptr<const ModelCpuBf16>;
  static std::variant<Fp32, Bf16> model_of(const Problem& problem);
  template <class Model>
  void compute_with(const Model& model, const Task& task, const Operands& o) const;
  DropoutPlace dropout_place(const Task& task, const Operands& operands) const;

  std::variant<Fp32, Bf16> model_;
  HostOptimizer optimizer_;
  std::int64_t micro_batch_;     // sequences
  std::int64_t first_sequence_;  // of this rank's, in the batch
};

}  // namespace spillway
