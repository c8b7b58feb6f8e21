// How long a compute task runs, from measured kernels.
//
// Exact: the median of the kernel measured at the task's kind and shape (kernel_shape()). A
// layer that saves or recomputes some of its tensors lies between the ones that do all and nothing,
// if these two were measured: by the bytes saved; by what recomputing each group of tensors alone
// takes (recompute_groups), or, if that was not measured, by the FLOPs recomputed. On a GPU that
// works on a part of the micro-batch at once, layers and the head take what micro-batches of that
// size take together. On a CPU whose caches hold some of a layer's operands (Task::in_caches), the
// time lies by that share between those of the kernel with no operand in a cache and with all,
// where both are known. Where no such shape was measured, a GPU whose products were measured by
// shape
// ([[gpu.by_shape]]) takes what these say; else the time is extrapolated by FLOP rate from
// the measured kernel that is nearest in FLOPs: of the same kind if there is one, else of any kind;
// with no kernels at all from gpu.flops, by shape where the machine file says more
// (shape_times.hpp). Tasks without FLOPs (embedding) are then timed by the
// bytes they touch. An extrapolated time is a guess and is marked as one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Everything about a compute task that its time can depend on within one problem.
std::uint64_t compute_key(const Task& task);

struct KernelEstimate {
  double seconds = 0;
  bool extrapolated = false;
};

// The kernels, none slower than on operands in the caches: for bounds.
std::vector<KernelTime> with_operands_in_caches(std::vector<KernelTime> kernels);

// Remembers what it was asked: not for several threads at once.
class KernelTimes {
 public:
  // Keeps a reference to the problem.
  explicit KernelTimes(const Problem& problem);
  // The task must be a compute task other than the optimizer. Throws InputError where nothing tells
  // the time.
  KernelEstimate estimate(const Task& task) const;
  // Whether some kernel with FLOPs was measured.
  bool any() const;
  // Bytes per second at which the norm of a gradient is taken on that lane; 0: not measured.
  double gradient_norm_rate(Lane lane) const;

 private:
  using Table = std::map<std::pair<std::string, std::string>, const KernelTime*>;

  KernelEstimate look_up(const Task& task) const;
  double in_caches(const Task& task, double seconds) const;
  const KernelTime* measured(const Task& task) const { return measured(task, measured_); }
  const KernelTime* measured(const Task& task, const Table& table) const;
  std::optional<double> between(const Task& task, const Table& table) const;
  KernelEstimate pass_of_backward(const Task& task) const;
  std::optional<double> by_groups(const Task& task) const;
  double recompute_share(const Task& task, const Task& all_kept, double all_seconds) const;
  double adapter_seconds(const Task& task) const;
  double by_flops(const Task& task) const;
  double extrapolate(const Task& task) const;

  const Problem& problem_;
  Table measured_, cached_;  // by (kind, shape); on operands in no cache, and in caches
  // What a schedule asks for, thousands of times each.
  mutable std::unordered_map<std::uint64_t, KernelEstimate> known_;
};

}  // namespace spillway
