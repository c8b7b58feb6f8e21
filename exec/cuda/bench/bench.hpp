// Times calls on the GPU for exec/run/gpu_bench.hpp: events around several in a row, after a
// warm-up; median and ratios are the reader's.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <vector>

#include "exec/cuda/attention/attention_choice.hpp"
#include "exec/cuda/kernels/bf16.hpp"
#include "exec/run/gpu_bench.hpp"

namespace spillway::cuda {

// Throws InputError when there is no such device.
std::unique_ptr<GpuBench> make_bench(const GpuBenchOptions& options);

// `size` elements of device memory on 256 bytes, full of random numbers.
template <class T>
class BenchArray {
 public:
  // Normal with this deviation; integers uniform in [0, limit).
  BenchArray(std::size_t size, float deviation);
  BenchArray(std::size_t size, std::int32_t limit);
  explicit BenchArray(const std::vector<T>& values);
  ~BenchArray() { static_cast<void>(cudaFree(memory_)); }
  BenchArray(const BenchArray&) = delete;
  BenchArray& operator=(const BenchArray&) = delete;
  BenchArray(BenchArray&& other) noexcept : memory_(other.memory_), size_(other.size_) {
    other.memory_ = nullptr;
  }
  T* data() const { return static_cast<T*>(memory_); }
  std::size_t size() const { return size_; }

 private:
  void take();
  void repeat(const std::vector<T>& pattern);

  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

// A call on `stream`; `turn` counts calls, so that they take turns on several sets of operands.
using BenchCall = std::function<void(std::int64_t turn, cudaStream_t stream)>;

// What all parts of the bench share.
class BenchRunner {
 public:
  explicit BenchRunner(const GpuBenchOptions& options);
  ~BenchRunner();
  BenchRunner(const BenchRunner&) = delete;
  BenchRunner& operator=(const BenchRunner&) = delete;

  // Fills in timing.seconds, and timing.reference_seconds and .best_seconds with `reference` and
  // `best` in turn with it.
  void time(GpuTiming& timing, const BenchCall& call, const BenchCall& reference = {},
            const BenchCall& best = {});
  // Seconds of a call, by one round: for choosing among several.
  double time_once(const BenchCall& call);
  bool tiny() const { return options_.size == GpuBenchSize::tiny; }
  bool quick() const { return options_.size == GpuBenchSize::quick; }
  int device() const { return options_.device; }
  // Bytes that tensors have at least, so that none of one call is left in the L2 cache for the
  // next: several times its size.
  std::size_t beyond_cache() const { return beyond_cache_; }
  cudaStream_t stream() const { return stream_; }

 private:
  // Seconds of each of `calls` calls in a row.
  double row(const BenchCall& call, std::int64_t calls);
  std::int64_t calls_per_round(const BenchCall& call);

  GpuBenchOptions options_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
  std::size_t beyond_cache_ = 0;
  std::int64_t turn_ = 0;
};

// One file each.
std::vector<GpuTiming> time_memory_bound(BenchRunner& runner);
std::vector<GpuTiming> time_matmuls(BenchRunner& runner);
GpuTiming time_matmul_peak(BenchRunner& runner);
GpuTiming time_layer_products(BenchRunner& runner, const LayerProductShape& shape);
std::vector<GpuTiming> time_gelu_backward(BenchRunner& runner, const GeluShape& shape);
// With the kernels of `choice`; where those are Hopper's, in turn with the others as reference.
std::vector<GpuTiming> time_attention(BenchRunner& runner);

}  // namespace spillway::cuda
