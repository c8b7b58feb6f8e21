// A GPU's rates by shape, from timings of a GPU that is made up.
#include "experiments/calibrate/shape_bench.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "policies/cost/shape_times.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {
namespace {

// Large products at 200 TFLOP/s, layers' at so much less the smaller they are, attention of each
// shape at 100 TFLOP/s as the machine file counts.
class MadeUpBench : public GpuBench {
 public:
  static double layer_share(const LayerProductShape& shape) {
    const auto rows = static_cast<double>(shape.rows), hidden = static_cast<double>(shape.hidden);
    return rows / (rows + 500) * hidden / (hidden + 100);
  }
  GpuInfo info() override { return {}; }
  GpuTiming copy() override { return {}; }
  GpuTiming matmul_peak() override {
    GpuTiming timing;
    timing.what = "a large one";
    timing.flops = 1e12;
    timing.seconds = {1e12 / 200e12};
    return timing;
  }
  std::vector<GpuTiming> memory_bound() override { return {}; }
  std::vector<GpuTiming> matmuls() override { return {}; }
  GpuTiming layer_products(const LayerProductShape& shape) override {
    GpuTiming timing;
    timing.flops = shape.flops();
    timing.seconds = {shape.flops() / (200e12 * layer_share(shape))};
    return timing;
  }
  std::vector<GpuTiming> gelu_backward(const GeluShape&) override { return {}; }
  std::vector<GpuTiming> attention() override {
    std::vector<GpuTiming> timings;
    for (const int head_size : {64, 128}) {
      for (const int tokens : {1024, 4096}) {
        const double halved = 1e12, counted = 2 * halved;  // forward's
        const double rate = 100e12 / attention_slowdown(head_size, tokens);
        timings.push_back(timing("forward", head_size, tokens, halved, counted / rate));
        timings.push_back(timing("backward", head_size, tokens, 2.5 * halved, 2 * counted / rate));
      }
    }
    return timings;
  }

 private:
  static GpuTiming timing(const char* way, int head_size, int tokens, double flops,
                          double seconds) {
    GpuTiming made;
    made.name = fmt::format("attention/{}-d{}-t{}", way, head_size, tokens);
    made.flops = flops;
    made.seconds = {seconds};
    return made;
  }
};

GpuUnderTest made_up_gpu(std::uint64_t free_memory) {
  GpuUnderTest gpu;
  gpu.info.multiprocessors = 100;
  gpu.info.free_memory = free_memory;
  gpu.make_bench = [](const GpuBenchOptions&) { return std::make_unique<MadeUpBench>(); };
  return gpu;
}

Machine measured(std::uint64_t free_memory) {
  Machine machine;
  machine.gpu.flops = 160e12;
  int figures = 0;
  measure_shapes(made_up_gpu(free_memory), {}, machine, [&](const std::string& what) {
    CHECK_FALSE(what.empty());
    ++figures;
  });
  CHECK(figures == shape_figures);
  return machine;
}

TEST_CASE("A GPU's products are tabled by tokens and hidden size, over the rate of a layer") {
  const Machine machine = measured(std::uint64_t{80} << 30);
  CHECK(machine.gpu.multiprocessors == 100);
  CHECK(machine.gpu.product_gain == Approx(200.0 / 160));
  CHECK(machine.gpu.by_shape.size() == 16);
  for (const Machine::Gpu::ShapeRate& row : machine.gpu.by_shape) {
    INFO(row.tokens << " tokens, " << row.hidden << " columns");
    const double share = MadeUpBench::layer_share({row.tokens, row.hidden, 4 * row.hidden});
    CHECK(row.share == Approx(share * 200 / 160));
  }
  for (const char* key :
       {"gpu.multiprocessors", "gpu.product_gain", "gpu.by_shape", "gpu.attention_flops"})
    CHECK_FALSE(machine.sources.at(key).empty());
}

TEST_CASE("Shapes that a GPU has no room for are left out") {
  // 32768 rows of 4 x 8192 columns in 16 bit take 2 GB, twice, beside 0.5 GB of parameters.
  const Machine machine = measured(std::uint64_t{8} << 30);
  CHECK(machine.gpu.by_shape.size() == 15);
}

TEST_CASE("Attention's rate is that of all keys, heads of 128 and sequences of 2048 tokens") {
  CHECK(measured(std::uint64_t{80} << 30).gpu.attention_flops == Approx(100e12));
  CHECK(attention_flops_of({}) == 0);
  // A way that was not timed says nothing.
  std::vector<GpuTiming> timings = MadeUpBench().attention();
  timings.erase(timings.begin());
  CHECK(attention_flops_of(timings) == Approx(100e12));
  timings.resize(1);
  CHECK(attention_flops_of(timings) == 0);
}

}  // namespace
}  // namespace spillway
