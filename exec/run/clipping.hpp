// From the norms of a step's gradient to what each update does with it.
//
// A unit's sum of squares is taken over its whole gradient at once, in fp64, in one fixed order
// (CpuKernels::sum_of_squares), and units are added in their order: the factor has the same bits
// whatever the policy, the placement, and the pieces in which updates are applied.
#pragma once

#include <span>
#include <vector>

#include "exec/cpu/kernels_cpu.hpp"
#include "exec/cpu/thread_pool.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

// CpuKernels::sum_of_squares by all threads of `pool`, to the same bits: a piece is one of the
// groups that it adds up in order. `sums`: room for square_sums(n) of them.
constexpr std::int64_t square_sum_elements = 64 * 2048;
constexpr std::int64_t square_sums(std::int64_t n) {
  return (n + square_sum_elements - 1) / square_sum_elements;
}
template <class Gradient>  // float, bf16
double sum_of_squares(ThreadPool& pool, std::span<double> sums, const Gradient* x,
                      const std::type_identity_t<Gradient>* second, std::int64_t n,
                      CpuVariant variant = best_cpu_variant());

// limit / (norm + 1e-6), at most 1: as torch.nn.utils.clip_grad_norm_ scales.
float clip_factor(double norm, double limit);

struct GradientUse {
  bool skip = false;  // the step's update is left out
  float factor = 1;   // the gradient is multiplied by it
};

// What the update of `unit` does. `squares`: the sums of squares of all units, or, where an update
// needs no more, of its own unit alone; empty where the workload takes no norms. `frozen`: by unit,
// whether it has no gradient, and so no square; empty: every unit has one.
GradientUse gradient_use(const Workload& workload, std::span<const double> squares, int unit,
                         const std::vector<bool>& frozen = {});

// What a step's gradient was, all of its tasks done.
struct StepGradient {
  double norm = 0;          // before clipping
  int nonfinite_unit = -1;  // of those whose gradient holds NaN or Inf, the one that backward
                            // reached first: the last layer that has any; -1: there is none
};
// The tasks that tell, step by step: those that take norms or, where there are none, the updates.
// By unit, each unit's in program order.
std::vector<std::vector<TaskId>> gradient_tasks(const Schedule& schedule);
// `tasks`: of one step. `squares`: by task, what Operands::gradient_square_sum got. By unit, what
// this rank has of it.
std::vector<double> unit_squares(const Schedule& schedule, std::span<const TaskId> tasks,
                                 std::span<const double> squares);
// `units`: by unit, over all ranks.
StepGradient step_gradient(const Schedule& schedule, std::span<const double> units);
// The same of one rank.
StepGradient step_gradient(const Schedule& schedule, std::span<const TaskId> tasks,
                           std::span<const double> squares);

// Throws MachineError, which names the layer and the step, where a task found NaN or Inf in a
// gradient and the workload stops for that. `step` is the global step of the gradient, `losses` are
// those of its sequences (as the head sums them up): where they are not finite, that is said, too.
void require_finite_gradient(const Schedule& schedule, const Task& task, double squares,
                             std::int64_t step, std::span<const double> losses);

}  // namespace spillway
