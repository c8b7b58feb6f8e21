// Which kernels are timed.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// The kernels of a compute task that policies emit, as tasks with everything that decides their
// shape; with `groups` also backward passes that recompute one group of tensors. Where gradients
// are 16 bits wide there is one micro-batch, which overwrites them; else those that add to a sum
// are taken, for most do.
std::vector<Task> kernel_tasks(const Problem& problem, bool groups);

// Those whose kind and shape are not among the names in `known`, which are named there.
std::vector<Task> new_tasks(const Problem& problem, std::vector<Task> tasks,
                            std::set<std::string>& known);

// As tasks of a problem of one micro-batch, with the gradients that it makes: of each width that
// there may be, those that the width before did not have.
std::vector<std::pair<Problem, std::vector<Task>>> kernels_by_width(const Problem& problem);

struct TimedKernel {
  Task task;
  bool in_caches = false;
};

// The tasks, and with `in_caches` forward and backward of a layer that the caches hold once more.
std::vector<TimedKernel> timed_kernels(const Problem& problem, const std::vector<Task>& tasks,
                                       bool in_caches);

// What a layer has for itself: parameters, gradient and all activations that it can keep.
std::uint64_t layer_bytes(const Problem& problem);

}  // namespace spillway
