#include "experiments/calibrate/shape_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/units.hpp"
#include "experiments/calibrate/statistics.hpp"
#include "policies/cost/shape_times.hpp"

namespace spillway {

namespace {

// Rows and hidden sizes of the table: a batch of one short sequence to that of a long training, the
// smallest GPT-2 to a model of some 65B.
std::vector<LayerProductShape> shapes_of(const GpuBenchOptions& bench, std::uint64_t free_memory) {
  const bool tiny = bench.size == GpuBenchSize::tiny;
  const std::vector<std::int64_t> hidden_sizes = {768, 1600, 4096, 8192},
                                  tokens = {512, 2048, 8192, 32768};
  std::vector<LayerProductShape> shapes;
  for (const std::int64_t hidden : tiny ? std::vector<std::int64_t>{32} : hidden_sizes) {
    for (const std::int64_t rows : tiny ? std::vector<std::int64_t>{8, 16} : tokens) {
      const LayerProductShape shape{rows, hidden, 4 * hidden};
      if (shape.bytes() < free_memory / 2) shapes.push_back(shape);
    }
  }
  return shapes;
}

}  // namespace

double attention_flops_of(const std::vector<GpuTiming>& timings) {
  struct Both {
    double forward_flops = 0, forward = 0, backward = 0;
  };
  std::map<std::pair<int, int>, Both> shapes;  // by head size and tokens
  for (const GpuTiming& timing : timings) {
    int head_size = 0, tokens = 0;
    const bool is_forward =
        std::sscanf(timing.name.c_str(), "attention/forward-d%d-t%d", &head_size, &tokens) == 2;
    if (!is_forward &&
        std::sscanf(timing.name.c_str(), "attention/backward-d%d-t%d", &head_size, &tokens) != 2)
      continue;
    if (timing.seconds.empty() || head_size <= 0 || tokens <= 0) continue;
    Both& both = shapes[{head_size, tokens}];
    (is_forward ? both.forward : both.backward) = median(timing.seconds);
    if (is_forward) both.forward_flops = timing.flops;
  }
  std::vector<double> rates;
  for (const auto& [shape, both] : shapes) {
    if (both.forward <= 0 || both.backward <= 0) continue;
    // The bench counts half of the keys; the key counts all, and twice as many in backward.
    const double counted = 2 * both.forward_flops * (1 + 2);
    rates.push_back(counted / (both.forward + both.backward) *
                    attention_slowdown(shape.first, shape.second));
  }
  return median(rates);
}

void measure_shapes(const GpuUnderTest& gpu, const GpuBenchOptions& bench, Machine& machine,
                    const std::function<void(const std::string&)>& next) {
  const auto timer = gpu.make_bench(bench);
  machine.gpu.multiprocessors = gpu.info.multiprocessors;
  machine.sources["gpu.multiprocessors"] = "as the driver says";
  next("the largest rate of a product");
  const GpuTiming peak = timer->matmul_peak();
  const double peak_rate = peak.flops / median(peak.seconds);
  machine.gpu.product_gain = std::clamp(peak_rate / machine.gpu.flops, 1.0, 2.0);
  machine.sources["gpu.product_gain"] =
      fmt::format("{}: {}, over gpu.flops", peak.what, format_flops_per_second(peak_rate));
  next("products by tokens and hidden size");
  machine.gpu.by_shape.clear();
  for (const LayerProductShape& shape : shapes_of(bench, gpu.info.free_memory)) {
    const GpuTiming timing = timer->layer_products(shape);
    const double share = timing.flops / median(timing.seconds) / machine.gpu.flops;
    machine.gpu.by_shape.push_back({shape.rows, shape.hidden, std::clamp(share, 1e-6, 2.0)});
  }
  machine.sources["gpu.by_shape"] =
      "bare cuBLASLt products of a layer's forward in a row, bf16, over gpu.flops";
  next("attention by head size and tokens");
  machine.gpu.attention_flops = attention_flops_of(timer->attention());
  machine.sources["gpu.attention_flops"] =
      "the median over head sizes and tokens of attention's kernels, forward and backward, each "
      "as much faster as heads of 128 and sequences of 2048 are by FlashAttention-2's figures";
}

}  // namespace spillway
