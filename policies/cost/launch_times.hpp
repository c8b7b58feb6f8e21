// How long the thread that drives a GPU takes to start the kernels of a compute task. The GPU runs
// one kernel while the thread starts the next; where kernels are shorter than their starts, the
// task takes as long as these.
//
// Our own program starts one kernel for each operator of a layer's forward and two for each of its
// backward, for every kernel batch (exec/cuda/model/model_cuda_layer.cpp: 8 and 17 to 19 in a GPT),
// and seven for a chunk of the head, at gpu.launch each. Measured kernels contain this.
//
// In another framework a layer's forward has host.operators operators, its backward twice as many,
// and recomputation its share; the head has those of one chunk. Each takes host.operator. The hooks
// of every module that has parameters take host.hook in forward, in recomputation and in backward.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "policies/framework/framework.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Remembers what it was asked: not for several threads at once.
class LaunchTimes {
 public:
  // Keeps references to both.
  LaunchTimes(const Problem& problem, const Framework& framework);
  // Whether any task's time is known not to be zero.
  bool any() const { return operator_ns_ > 0 || hook_ns_ > 0; }
  // Of a compute task; 0 for the embedding's, which are a kernel or two.
  double seconds(const Task& task) const;

 private:
  double look_up(const Task& task) const;
  double operators_of(const Task& task) const;
  double hooks_of(const Task& task) const;

  const Problem& problem_;
  const Framework& framework_;
  const bool own_;
  double operator_ns_ = 0, hook_ns_ = 0;
  std::int64_t kernels_ = 1;  // kernel batches in a micro-batch
  mutable std::unordered_map<std::uint64_t, double> known_;
};

}  // namespace spillway
