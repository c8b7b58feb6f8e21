// Times the CUDA backend's kernels one by one, each beside what the GPU allows.
//
// The measuring code is in the CUDA module (exec/cuda/bench/), because it launches kernels and
// calls cuBLASLt; this is the program's side of it, and what the numbers are held to is
// experiments/speed/speed_gpu.hpp. Numbers are made at random, calls are timed by events, several
// in a row after a warm-up; rates follow from `bytes` and `flops`, which count what a call cannot
// do without: every operand read once and every result written once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct GpuInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::uint64_t memory = 0, free_memory = 0, l2_bytes = 0;
};

// One thing timed, round by round.
struct GpuTiming {
  std::string name;             // "kernel/gelu-forward"
  std::string what;             // shape, in one line
  double bytes = 0, flops = 0;  // of one call
  std::vector<double> seconds;  // of one call, by round
  // The same work done by others, in turn with it; empty where there is none.
  std::string reference;
  std::vector<double> reference_seconds;
  // Where the reference is cuBLASLt's first algorithm: the fastest of its first eight, in turn with
  // both.
  std::string best;
  std::vector<double> best_seconds;
  std::string note;  // what the reader should know; often empty
};

// The second half of a feed-forward network, as its backward pass meets it in bf16.
struct GeluShape {
  std::int64_t rows = 0, hidden = 0, ffn = 0;
};

// The products of a layer of a GPT on so many rows: qkv, attention's projection, fc and its
// projection.
struct LayerProductShape {
  std::int64_t rows = 0, hidden = 0, ffn = 0;

  double flops() const {
    const auto c = static_cast<double>(hidden), f = static_cast<double>(ffn);
    return 2 * static_cast<double>(rows) * (4 * c * c + 2 * c * f);
  }
  // Of one operand of each kind, in bf16, as large as the largest product needs them.
  std::uint64_t bytes() const {
    const auto r = static_cast<std::uint64_t>(rows), c = static_cast<std::uint64_t>(hidden),
               f = static_cast<std::uint64_t>(ffn);
    const std::uint64_t wide = f > 3 * c ? f : 3 * c;
    return 2 * (2 * r * wide + wide * c);
  }
};

enum class GpuBenchSize : std::uint8_t {
  full,
  quick,  // fewer shapes
  tiny    // the smallest shapes, each once: for tests of the bench itself
};

struct GpuBenchOptions {
  int device = 0;  // as nvidia-smi numbers them
  GpuBenchSize size = GpuBenchSize::full;
  int rounds = 9;
  double seconds = 0.02;  // of each round, about; a call is made at least once
};

// All calls throw MachineError where CUDA does.
class GpuBench {
 public:
  virtual ~GpuBench() = default;
  virtual GpuInfo info() = 0;
  // From device memory to device memory: what memory gives.
  virtual GpuTiming copy() = 0;
  // A bare cuBLASLt product of 8192 x 8192 bf16 matrices: what the tensor cores give.
  virtual GpuTiming matmul_peak() = 0;
  // Kernels bound by memory, on tensors that no cache holds.
  virtual std::vector<GpuTiming> memory_bound() = 0;
  // The matrix products of GPT-2s through Matmul, beside bare cuBLASLt products of the same shapes.
  virtual std::vector<GpuTiming> matmuls() = 0;
  // Bare cuBLASLt products of a layer's forward, one after the other, as one call.
  virtual GpuTiming layer_products(const LayerProductShape& shape) = 0;
  // Each way to compute GELU's backward, with the product before it, by the names of
  // gpu.gelu_backward in machine files: "kernel", and in turn with it those of cuBLASLt's epilogues
  // that give equal bits each time.
  virtual std::vector<GpuTiming> gelu_backward(const GeluShape& shape) = 0;
  // Causal attention, both ways. FLOPs of D = head size, H heads: per sequence 4 T^2 / 2 D H
  // forward, 2.5 times that backward.
  virtual std::vector<GpuTiming> attention() = 0;
};

}  // namespace spillway
