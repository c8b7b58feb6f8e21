// What the optimizer's tasks do where the host computes them: the lane cpu.optimizer of every
// device, and gpu.compute of the CPU's own.
//
// Gradients are as wide as Problem::gradient_bytes() says (fp32 or bf16), parameters as
// parameter_bytes(), moments as the workload says; masters are fp32. An update has the same bits
// whatever the pieces, the threads and the CPU's vectors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "exec/cpu/thread_pool.hpp"
#include "exec/run/device.hpp"
#include "policies/model/units.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Calls may come from several lanes at once: one of them gets all threads, the others their own.
class HostOptimizer {
 public:
  // `threads`: how many share an update, the caller's among them. Throws MachineError when this CPU
  // lacks `variant`.
  explicit HostOptimizer(const Problem& problem, int threads = 1,
                         CpuVariant variant = best_cpu_variant());

  // A task of kind optimizer: clips the gradient as the norms say, updates master and moments, and
  // writes the parameters; where the step is left out, the parameters are written all the same,
  // from the masters. gradient_square_sum gets the sum of squares before clipping (0 when left
  // out).
  void update(const Task& task, const Operands& operands) const;
  // A task of kind gradient_norm: norms[0] and gradient_square_sum get the unit's sum of squares.
  // Of several ranks, that of this rank's shard; of one rank with several gradient groups, the sum
  // of those of as many shards, in their order.
  void gradient_norm(const Task& task, const Operands& operands) const;
  // A task of kind gradient_add: gradient += input.
  void gradient_add(const Task& task, const Operands& operands) const;

 private:
  template <class Gradient, class Parameter>
  void update_parameters(const Task& task, const Operands& operands) const;
  template <class Gradient, class Parameter, class Moment>
  void update_as(const Task& task, const Operands& operands) const;
  template <class Gradient>
  void gradient_norm_as(const Task& task, const Operands& operands) const;
  std::size_t index(const Task& task) const {
    return static_cast<std::size_t>(std::max<std::int64_t>(0, task.layer - layers_ + 1));
  }
  const std::vector<TensorLayout>& layout(const Task& task) const { return layouts_[index(task)]; }

  Workload workload_;
  bool wide_gradient_, wide_parameters_;  // fp32, not bf16
  // Of a layer, then of the units after the layers.
  std::int64_t layers_;
  std::vector<std::int32_t> whole_units_;  // by unit: which of the whole model it is
  std::vector<std::vector<TensorLayout>> layouts_;
  std::vector<bool> frozen_;  // by unit
  CpuVariant variant_;
  mutable std::mutex pool_mutex_;  // whoever holds it has the pool, and `sums_`
  mutable ThreadPool pool_, alone_{1};
  mutable std::vector<double> sums_;  // of the largest unit's gradient
};

}  // namespace spillway
