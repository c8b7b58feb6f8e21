// Calibration of a GPU: every figure is taken, and no prediction at a measured shape is a guess.
#include "experiments/calibrate/calibrate.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "base/errors.hpp"
#include "experiments/calibrate/kernel_bench.hpp"
#include "policies/common/policy.hpp"
#include "policies/schedule/program.hpp"
#include "sim/simulate.hpp"
#include "tests/cuda/bench/measured_gpu.hpp"

namespace spillway {
namespace {

CalibrationOptions small_calibration() {
  CalibrationOptions options;
  options.model = load_model("gpt-tiny", {"hidden=32", "layers=2", "heads=2"});
  options.sequence = 8;
  options.micro_batches = {1, 2};
  options.precision = Precision::bf16;
  options.most_seconds_per_figure = 0;
  options.gpu = test::gpu_under_test();
  options.gpu_sizes = {0, 64 << 10, 1 << 20, 256 << 10, GpuBenchSize::tiny};
  return options;
}

Problem small_problem(const CalibrationOptions& options, const Machine& machine,
                      std::int64_t micro_batch) {
  Problem problem;
  problem.model = options.model;
  problem.machine = machine;
  problem.workload.batch = 2;
  problem.workload.micro_batch = problem.workload.sequences_at_once = micro_batch;
  problem.workload.sequence = options.sequence;
  problem.workload.precision = options.precision;
  return problem;
}

TEST_CASE(
    "CUDA: a calibrated GPU has every figure with its samples, and prices every policy without "
    "guessing",
    "[slow]") {
  const CalibrationOptions options = small_calibration();
  int last = -1, all = 0;
  Machine machine = calibrate(options, [&](const std::string& what, int done, int planned) {
    CHECK_FALSE(what.empty());
    CHECK(done == last + 1);  // progress moves one by one, and the total does not change under way
    if (last >= 0) CHECK(planned == all);
    last = done;
    all = planned;
  });
  CHECK(last + 1 == all);
  CHECK_FALSE(machine.gpu.is_cpu);
  CHECK(machine.gpu.memory > 0);
  CHECK(machine.gpu.memory < options.gpu->info.free_memory);
  for (const double rate :
       {machine.gpu.flops, machine.gpu.adam_params_per_second, machine.gpu.memory_bandwidth,
        machine.pcie.h2d, machine.pcie.d2h, machine.host.bandwidth,
        machine.host.adam_params_per_second, machine.host.cores}) {
    CHECK(rate > 0);
  }
  CHECK(machine.host.wake_ns > 0);
  CHECK(machine.host.sync_ns == 2 * machine.host.wake_ns);
  CHECK(machine.gpu.launch_ns >= 0);
  // What models and batches take that were not measured.
  CHECK(machine.gpu.multiprocessors == options.gpu->info.multiprocessors);
  CHECK(machine.gpu.attention_flops > 0);
  CHECK(machine.gpu.product_gain >= 1);
  REQUIRE(machine.gpu.by_shape.size() == 2);
  for (const Machine::Gpu::ShapeRate& row : machine.gpu.by_shape) {
    CHECK((row.tokens == 8 || row.tokens == 16));
    CHECK(row.hidden == 32);
    CHECK(row.share > 0);
  }
  // 24 bytes of fp32 state, a 32-bit gradient read, a 16-bit parameter written.
  CHECK(machine.host.adam_bytes_per_param == 30);
  for (const KernelTime& time : machine.kernels) {
    INFO(time.kind << " " << time.shape);
    CHECK(time.samples_ns.size() >= 10);
    CHECK(time.median_ns >= 0);
  }
  CHECK(machine_to_toml(parse_machine(machine_to_toml(machine), "round trip")) ==
        machine_to_toml(machine));

  // Any drive will do: how drives are measured is a test of its own.
  machine.ssd.count = 1;
  machine.ssd.capacity = std::uint64_t{1} << 40;
  machine.ssd.read = machine.ssd.write = 1e9;
  // With one micro-batch gradients are 16 bits wide, with two 32: both were measured.
  for (const std::int64_t micro_batch : options.micro_batches) {
    const Problem problem = small_problem(options, machine, micro_batch);
    for (const char* policy :
         {"resident", "resident:recompute=needed", "zero-offload", "zero-infinity", "fuyou",
          "greedysnake", "fuyou:swap=auto", "fuyou:swap=0.4", "fuyou:recompute=needed"}) {
      INFO(policy << " " << micro_batch);
      CHECK(simulate(build_schedule(problem, policy, 4)).extrapolates.empty());
    }
  }
}

TEST_CASE("CUDA: kernels of adapters are timed, with the head frozen", "[adapters]") {
  const CalibrationOptions options = small_calibration();
  Problem problem = small_problem(options, {}, 2);
  problem.model.lora_rank = 4;
  problem.model.lora_dropout = 0.1;
  std::set<std::string> known;
  const std::vector<Task> tasks = stream_kernel_tasks(problem, known);
  const std::vector<KernelTime> times = time_stream_kernels(
      problem, tasks, {2, 1, 0, 1}, [](const std::string&) {}, options.gpu->make_device, 0);
  REQUIRE(times.size() == tasks.size());
  for (const KernelTime& time : times) {
    INFO(time.kind << " " << time.shape);
    CHECK_FALSE(time.samples_ns.empty());
    CHECK(time.kind != to_string(TaskKind::embed_backward));
    const auto says = [&](const char* what) { return time.shape.find(what) != std::string::npos; };
    const bool of_layer =
        time.kind == to_string(TaskKind::forward) || time.kind == to_string(TaskKind::backward);
    CHECK(says(",r4,dropout,attn.c_attn,") == of_layer);
    CHECK(says(",frozen") == (time.kind == to_string(TaskKind::head)));
  }
}

// Its ways to compute GELU's backward take the times given; all else is the device's.
class BenchWithGelu : public GpuBench {
 public:
  BenchWithGelu(std::unique_ptr<GpuBench> real, std::map<std::string, double> seconds)
      : real_(std::move(real)), seconds_(std::move(seconds)) {}
  GpuInfo info() override { return real_->info(); }
  GpuTiming copy() override { return real_->copy(); }
  GpuTiming matmul_peak() override { return real_->matmul_peak(); }
  std::vector<GpuTiming> memory_bound() override { return real_->memory_bound(); }
  std::vector<GpuTiming> matmuls() override { return real_->matmuls(); }
  std::vector<GpuTiming> attention() override { return real_->attention(); }
  GpuTiming layer_products(const LayerProductShape& shape) override {
    return real_->layer_products(shape);
  }
  std::vector<GpuTiming> gelu_backward(const GeluShape& shape) override {
    CHECK(shape.rows == 16);  // two sequences of 8 at once
    CHECK(shape.ffn == 128);
    std::vector<GpuTiming> timings;
    for (const char* name : {"kernel", "dgelu", "dgelu-bgrad"}) {
      if (seconds_.count(name) == 0) continue;
      timings.emplace_back().name = name;
      timings.back().seconds = {seconds_.at(name)};
    }
    return timings;
  }

 private:
  std::unique_ptr<GpuBench> real_;
  std::map<std::string, double> seconds_;
};

TEST_CASE("CUDA: the machine file says by what GELU's backward is computed, as it was measured",
          "[slow]") {
  // The fastest, where it takes at least 3 % less time than the kernel.
  const auto chosen = [](std::map<std::string, double> seconds) {
    CalibrationOptions options = small_calibration();
    options.micro_batches = {2};
    options.gpu->make_bench = [seconds](const GpuBenchOptions& bench) {
      return std::make_unique<BenchWithGelu>(cuda::make_bench(bench), seconds);
    };
    const Machine machine = calibrate(options, [](const std::string&, int, int) {});
    CHECK_THAT(machine.sources.at("gpu.gelu_backward"), Catch::Contains("kernel 100 us"));
    const Machine read = parse_machine(machine_to_toml(machine), "round trip");
    CHECK(read.gpu.gelu_backward == machine.gpu.gelu_backward);
    return read.gpu.gelu_backward;
  };
  CHECK(chosen({{"kernel", 100e-6}, {"dgelu", 80e-6}, {"dgelu-bgrad", 90e-6}}) == "dgelu");
  CHECK(chosen({{"kernel", 100e-6}, {"dgelu", 98e-6}, {"dgelu-bgrad", 96e-6}}) == "dgelu-bgrad");
  CHECK(chosen({{"kernel", 100e-6}, {"dgelu", 98e-6}, {"dgelu-bgrad", 120e-6}}) == "kernel");
  CHECK(chosen({{"kernel", 100e-6}}) == "kernel");
}

TEST_CASE("CUDA: kernels are measured as they will run: sequences at once, precision") {
  CalibrationOptions options = small_calibration();
  options.micro_batches = {2};
  options.sequences_at_once = 1;
  options.precision = Precision::fp32;
  const Machine machine = calibrate(options, [](const std::string&, int, int) {});
  Problem problem = small_problem(options, machine, 2);
  const auto guesses = [&] {
    return !simulate(build_schedule(problem, "resident", 2)).extrapolates.empty();
  };
  CHECK(guesses());  // both sequences at once were not measured
  problem.workload.sequences_at_once = 1;
  CHECK_FALSE(guesses());
  problem.workload.precision = Precision::bf16;
  CHECK(guesses());
}

TEST_CASE("CUDA: micro-batches that memory has no room for are left out, the others are kept") {
  CalibrationOptions options = small_calibration();
  options.micro_batches = {1, 4'000'000};
  options.gpu->info.free_memory = std::uint64_t{1} << 30;
  std::vector<std::string> notes;
  bool measuring = false;
  const Machine machine = calibrate(
      options, [&](const std::string&, int, int) { measuring = true; },
      [&](const std::string& text) {
        CHECK_FALSE(measuring);
        notes.push_back(text);
      });
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Catch::Contains("micro-batches of 4000000 take") &&
                           Catch::Contains("of GPU memory") && Catch::Contains("left out"));
  for (const KernelTime& time : machine.kernels) {
    INFO(time.shape);
    CHECK(time.shape.find("b4000000") == std::string::npos);
  }
  CHECK(machine.gpu.memory > 0);
  CHECK(simulate(build_schedule(small_problem(options, machine, 1), "resident", 2))
            .extrapolates.empty());

  // Where none fits there is nothing to write.
  options.micro_batches = {4'000'000};
  notes.clear();
  measuring = false;
  CHECK_THROWS_AS(calibrate(options, [&](const std::string&, int, int) { measuring = true; }),
                  FitError);
  CHECK_FALSE(measuring);
}

TEST_CASE("CUDA: what the backend does not compute cannot be calibrated") {
  CalibrationOptions options = small_calibration();
  options.model = load_model("llama-7b", {"layers=1", "hidden=64", "heads=2", "kv_heads=2",
                                          "head_width=12", "ffn=128", "vocabulary=256"});
  CHECK_THROWS_AS(calibrate(options, [](const std::string&, int, int) {}), InputError);
  options = small_calibration();
  options.gpu->info.free_memory = 1 << 20;
  CHECK_THROWS_AS(calibrate(options, [](const std::string&, int, int) {}), MachineError);
}

}  // namespace
}  // namespace spillway
