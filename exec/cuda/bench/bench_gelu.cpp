// The ways to compute GELU's backward (gelu_choice.hpp), each with the product before it, in turn
// with the usual one.
#include <fmt/format.h>

#include "base/errors.hpp"
#include "exec/cuda/bench/bench.hpp"
#include "exec/cuda/gpt/gelu_choice.hpp"
#include "exec/cuda/matmul/sample_numbers.hpp"

namespace spillway::cuda {

namespace {

// Operands of gelu_backward_by(), and whether a way can be taken.
class GeluWays {
 public:
  GeluWays(BenchRunner& runner, const GeluShape& shape)
      : runner_(runner),
        shape_(shape),
        dy_(size(shape.rows, shape.hidden), 1.0f),
        w_(size(shape.hidden, shape.ffn), 0.02f),
        fc_(size(shape.rows, shape.ffn), 1.0f),
        dfc_(size(shape.rows, shape.ffn), 1.0f),
        sums_(size(1, shape.ffn), 1.0f),
        fc_bias_(size(1, shape.ffn), 0.0f),
        workspace_(Matmul::workspace_bytes, 0.0f),
        kernel_workspace_(cuda::workspace_bytes(shape.hidden, shape.ffn, 1), 0.0f),
        tuning_memory_(MatmulTuning::memory_bytes, 0.0f),
        tuning_(bytes(tuning_memory_), bytes(workspace_), runner.stream()),
        matmul_(bytes(workspace_)) {
    matmul_.tune(&tuning_);
  }

  void run(GeluBackward how, cudaStream_t stream) {
    const GeluBackwardOperands<bf16, float> operands{
        dy_.data(), w_.data(),    fc_.data(),  dfc_.data(),   nullptr,   fc_bias_.data(),
        true,       sums_.data(), shape_.rows, shape_.hidden, shape_.ffn};
    gelu_backward_by<bf16, float>(how, matmul_, operands,
                                  {bytes(kernel_workspace_), kernel_workspace_.size()}, stream);
  }

  // cuBLASLt does not say in which order its epilogue sums up a bias's gradient; where it depends
  // on how blocks happen to run, some of these differ.
  bool repeats(GeluBackward how) {
    constexpr int times = 4;
    std::uint64_t first = 0;
    for (int i = 0; i < times; ++i) {
      run(how, runner_.stream());
      const std::uint64_t bits =
          digest(dfc_.data(), dfc_.size() * sizeof(bf16), bytes(tuning_memory_), runner_.stream()) +
          3 * digest(fc_bias_.data(), fc_bias_.size() * sizeof(float), bytes(tuning_memory_),
                     runner_.stream());
      if (i == 0) first = bits;
      if (bits != first) return false;
    }
    return true;
  }

 private:
  static std::size_t size(std::int64_t rows, std::int64_t columns) {
    return static_cast<std::size_t>(rows * columns);
  }
  static std::byte* bytes(const BenchArray<unsigned char>& array) {
    return reinterpret_cast<std::byte*>(array.data());
  }

  BenchRunner& runner_;
  GeluShape shape_;
  BenchArray<bf16> dy_, w_, fc_, dfc_, sums_;
  BenchArray<float> fc_bias_;
  BenchArray<unsigned char> workspace_, kernel_workspace_, tuning_memory_;
  MatmulTuning tuning_;
  Matmul matmul_;
};

}  // namespace

std::vector<GpuTiming> time_gelu_backward(BenchRunner& runner, const GeluShape& shape) {
  GeluWays ways(runner, shape);
  std::vector<GpuTiming> timings;
  const auto call = [&](GeluBackward how) -> BenchCall {
    return [&ways, how](std::int64_t, cudaStream_t stream) { ways.run(how, stream); };
  };
  for (const GeluBackward how :
       {GeluBackward::kernel, GeluBackward::dgelu, GeluBackward::dgelu_bgrad}) {
    const bool fused = how != GeluBackward::kernel;
    try {
      if (!ways.repeats(how)) continue;
    } catch (const MachineError&) {
      if (!fused) throw;
      continue;  // no algorithm for the epilogue
    }
    GpuTiming timing;
    timing.name = name_of(how);
    timing.what = fmt::format("{} rows, {} to {}, bf16", shape.rows, shape.hidden, shape.ffn);
    timing.flops = 2 * static_cast<double>(shape.rows) * static_cast<double>(shape.hidden) *
                   static_cast<double>(shape.ffn);
    if (fused) timing.reference = "product, then kernel";
    runner.time(timing, call(how), fused ? call(GeluBackward::kernel) : BenchCall());
    timings.push_back(std::move(timing));
  }
  return timings;
}

}  // namespace spillway::cuda
