// What the optimizer's tasks do where the host computes them: the lane cpu.optimizer of every
// device, and gpu.compute of the CPU's own.
//
// Gradients are as wide as Problem::gradient_bytes() says (fp32 or bf16), parameters as
// parameter_bytes(), moments as the workload says; masters are fp32. An update has the same bits
// whatever the pieces, the threads and the CPU's vectors.
#pragma once

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
  void gradient_norm(const Task& task, const Operands& operands) const;

 private:
  template <class Gradient, class Parameter>
  void update_parameters(const Task& task, const Operands& operands) const;
  template <class Gradient, class Parameter, class Moment>
  void update_as(const Task& task, const Operands& operands) const;
  template <class Gradient>
  void gradient_norm_as(const Task& task, const Operands& operands) const;
  const std::vector<TensorLayout>& layout(const Task& task) const {
    return task.layer == layers_ ? embedding_layout_ : layer_layout_;
  }

  Workload workload_;
  bool wide_gradient_, wide_parameters_;  // fp32, not bf16
  std::int64_t layers_, layer_elements_, embedding_elements_;
  std::vector<TensorLayout> layer_layout_, embedding_layout_;
  CpuVariant variant_;
  mutable std::mutex pool_mutex_;  // whoever holds it has the pool, and `sums_`
  mutable ThreadPool pool_, alone_{1};
  mutable std::vector<double> sums_;  // of the largest unit's gradient
};

}  // namespace spillway
