// Times the compute kernels of a device at the shapes that policies use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "exec/run/device.hpp"
#include "experiments/calibrate/sampler.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Makes a device for a problem, with arenas of (at least) these sizes.
using MakeDevice = std::function<std::unique_ptr<Device>(
    const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes)>;

// Every kernel of one micro-batch of `problem` on the CPU backend with so many threads for matrix
// products, each on operands that are not in the caches; in bf16 those that make gradients once
// with 32-bit ones and once with the 16-bit ones of a single micro-batch. With `in_caches`, forward
// and backward of a layer that the caches hold also on operands that are there (in_caches_suffix).
// A rule of ten samples or more is kept in several passes over all kernels. `before` is told what
// is measured next, kernel_timings() times.
std::vector<KernelTime> time_kernels(const Problem& problem, const SamplingRule& rule,
                                     const std::function<void(const std::string&)>& before,
                                     int threads = 1, bool in_caches = false);

int kernel_timings(const Problem& problem, const SamplingRule& rule, bool in_caches);

// The kernels to be measured on a device with streams, as tasks: those above with the gradients of
// the problem, and backward passes that recompute one group of tensors each (recompute_groups).
// Those named in `known` by kind and
// shape are left out, the others are named there. With 16-bit gradients they are those of the first
// micro-batch, for there is no other; with 32-bit ones, of those that follow it.
std::vector<Task> stream_kernel_tasks(const Problem& problem, std::set<std::string>& known);

// Bytes of the arenas that timing them takes.
struct StreamKernelMemory {
  std::uint64_t gpu = 0, host = 0;
};
StreamKernelMemory stream_kernel_memory(const Problem& problem);

// Times them by the device's own clock, one after the other as in training, with two layers taking
// turns. For `load_seconds` before, the device is kept busy with the same kernel: what its clocks
// and its power allow then is what training will find.
std::vector<KernelTime> time_stream_kernels(const Problem& problem, const std::vector<Task>& tasks,
                                            const SamplingRule& rule,
                                            const std::function<void(const std::string&)>& before,
                                            const MakeDevice& make_device, double load_seconds);

// The compute reference kernel (reference_kernels.hpp): forward and backward of one layer, fixed in
// shape, on one thread of the CPU backend.
class ReferenceLayer {
 public:
  ReferenceLayer();
  ~ReferenceLayer();
  // Nanoseconds of both passes on operands in no cache and, right after, on those that are.
  std::int64_t run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway
