// Attention on the tensor cores. FLOPs of a call, with D = head size and H heads: per sequence
// 4 T^2 / 2 D H forward (two products of T x T by D, of which the causal half is computed), 2.5
// times that backward (five products).
#include <fmt/format.h>

#include "exec/cuda/attention/attention.hpp"
#include "exec/cuda/bench/bench.hpp"
#include "exec/run/cuda_module.hpp"

namespace spillway::cuda {

namespace {

constexpr double backward_factor = 2.5;
constexpr std::int64_t channels = 2048;
constexpr std::int64_t tokens_at_once = 32 * 1024;

struct AttentionShape {
  std::int64_t head_size, tokens, sequences, channels;
};

std::vector<AttentionShape> shapes_of(const BenchRunner& runner) {
  if (runner.tiny()) return {{64, 32, 1, 64}, {128, 32, 1, 128}};
  std::vector<AttentionShape> shapes;
  for (const std::int64_t head_size : {64, 128}) {
    for (const std::int64_t tokens : {1024, 2048, 4096}) {
      if (runner.quick() && tokens == 2048) continue;
      shapes.push_back({head_size, tokens, tokens_at_once / tokens, channels});
    }
  }
  return shapes;
}

void time_shape(BenchRunner& runner, AttentionKernels kernels, const AttentionShape& shape,
                std::vector<GpuTiming>& timings) {
  AttentionSizes sizes;
  sizes.kernels = kernels;
  sizes.sequences = shape.sequences;
  sizes.tokens = shape.tokens;
  sizes.head_size = shape.head_size;
  sizes.heads = sizes.kv_heads = shape.channels / shape.head_size;
  sizes.statistics_stride = sizes.heads * sizes.tokens;
  const auto rows = static_cast<std::size_t>(sizes.sequences * sizes.tokens),
             width = static_cast<std::size_t>(sizes.channels());
  const BenchArray<bf16> qkv(rows * 3 * width, 1.0f), output(rows * width, 1.0f),
      output_gradient(rows * width, 1e-3f), qkv_gradient(rows * 3 * width, 1.0f);
  const auto statistics = static_cast<std::size_t>(sizes.sequences * sizes.statistics_stride);
  const BenchArray<float> log_sum_exp(statistics, 1.0f), dots(statistics, 1.0f);

  const double t = static_cast<double>(sizes.tokens);
  const double flops =
      static_cast<double>(sizes.sequences) * 4 * t * t / 2 * static_cast<double>(sizes.channels());
  const std::string what =
      fmt::format("{} sequences of {} tokens, {} heads of {}, causal, bf16, {}", sizes.sequences,
                  sizes.tokens, sizes.heads, shape.head_size, name_of(kernels));
  AttentionSizes other = sizes;
  other.kernels = AttentionKernels::mma_sync;
  const bool has_other = kernels != other.kernels;
  const auto time = [&](GpuTiming timing, auto call) {
    timing.what = what;
    if (has_other) timing.reference = fmt::format("with {}", name_of(other.kernels));
    const auto with = [&](const AttentionSizes& chosen) {
      return [&](std::int64_t, cudaStream_t stream) { call(chosen, stream); };
    };
    runner.time(timing, with(sizes), has_other ? BenchCall(with(other)) : BenchCall());
    timings.push_back(std::move(timing));
  };
  GpuTiming forward;
  forward.name = fmt::format("attention/forward-d{}-t{}", shape.head_size, sizes.tokens);
  forward.flops = flops;
  time(std::move(forward), [&](const AttentionSizes& chosen, cudaStream_t stream) {
    attention_forward<bf16>(chosen, side_by_side<bf16>(chosen, qkv.data()), output.data(),
                            log_sum_exp.data(), stream);
  });
  GpuTiming backward;
  backward.name = fmt::format("attention/backward-d{}-t{}", shape.head_size, sizes.tokens);
  backward.flops = backward_factor * flops;
  time(std::move(backward), [&](const AttentionSizes& chosen, cudaStream_t stream) {
    attention_backward<bf16>(chosen, side_by_side<bf16>(chosen, qkv.data()), output.data(),
                             log_sum_exp.data(), output_gradient.data(), qkv_gradient.data(),
                             dots.data(), stream);
  });
}

}  // namespace

// The kernels that training would take now; Hopper's own beside the usual ones. Not both in any
// case: where Hopper's fail, the usual ones are to have their figures.
std::vector<GpuTiming> time_attention(BenchRunner& runner) {
  std::vector<GpuTiming> timings;
  const AttentionKernels kernels = choose_attention(cuda_attention(), {64, 128});
  for (const AttentionShape& shape : shapes_of(runner)) time_shape(runner, kernels, shape, timings);
  return timings;
}

}  // namespace spillway::cuda
