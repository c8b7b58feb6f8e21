// How much slower the machine is than when it was calibrated: references, the machine corrected by
// them, and the share of runs that lies in an interval made of their spreads.
#include "experiments/calibrate/drift.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>
#include <thread>

#include "experiments/calibrate/reference_kernels.hpp"
#include "experiments/calibrate/sampler.hpp"
#include "experiments/calibrate/speed_gauge.hpp"
#include "policies/common/policy.hpp"
#include "sim/step_interval.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

KernelTime reference(const std::string& kind, std::int64_t ns, const std::string& shape = "s") {
  return kernel_time(kind, shape, 0, {ns, ns, ns});
}

Schedule small_schedule(const Machine& machine, const std::string& policy) {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = machine;
  problem.workload = {4, 2, 64, Precision::fp32, GradientWidth::automatic};
  return build_schedule(problem, policy, 6);
}

}  // namespace

TEST_CASE("Drift is time now over time then, of references of one kind and shape") {
  const Drift drift = drift_between(
      {reference("compute", 100), reference("adam", 200), reference("read", 50, "drives=1"),
       reference("copy", 10)},
      {reference("compute", 110), reference("adam", 100), reference("read", 99, "drives=2")});
  CHECK(drift == Drift{{"compute", 1.1}, {"adam", 0.5}});
  CHECK(drift_between({}, {reference("compute", 1)}).empty());
}

TEST_CASE("The drift of a machine of two speeds is by how often it is slow") {
  std::vector<std::int64_t> seldom(20, 100), often(20, 100);
  for (std::size_t i = 0; i < 8; ++i) seldom[i] = 140;  // of both, the median is the fast speed
  for (std::size_t i = 0; i < 9; ++i) often[i] = 140;
  const Drift drift = drift_between({kernel_time("compute", "s", 0, seldom)},
                                    {kernel_time("compute", "s", 0, often)});
  CHECK(drift.at("compute") > 1.01);
}

TEST_CASE("A speed gauge brings figures to the speed of the whole calibration") {
  SpeedGauge gauge({}, usual_io());
  const SamplingRule held = gauge.held(SamplingRule{3, 0, 100, 1}, "copy");
  const auto a_while = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1600));
    return 1'000'000;
  };
  CHECK(collect_ns(held, a_while).size() == 3);  // references after each
  CHECK(gauge.held("adam", [] { return std::vector<std::int64_t>{1000, 2000}; }).size() == 2);
  Machine machine = load_machine("testbed");
  const Machine before = machine;
  gauge.finish(machine);
  REQUIRE(machine.references.size() == 4);  // no drives
  const auto of = [&](const char* kind) {
    return std::find_if(machine.references.begin(), machine.references.end(),
                        [&](const KernelTime& one) { return one.kind == kind; })
        ->samples_ns.size();
  };
  // Rounds of all of them, whichever is asked for: after each of three samples, before and after;
  // more on a computer that takes a second from one to the next.
  CHECK(of("compute") >= 2 * calibration_rounds + 3 + 2);
  for (const char* kind : {"adam", "copy", "copies"}) CHECK(of(kind) == of("compute"));
  CHECK(machine.ssd.read == before.ssd.read);
  CHECK(machine.pcie.h2d > before.pcie.h2d / 3);
  CHECK(machine.pcie.h2d < before.pcie.h2d * 3);
}

TEST_CASE("References of the drives are timed at both ends and between figures of the drives") {
  const test::TemporaryFolder folder;
  SpeedGauge gauge({folder.path()}, usual_io());
  const int figures = 3;
  for (int i = 0; i < figures; ++i) gauge.take_with_drives();
  Machine machine = load_machine("testbed");
  const Machine before = machine;
  gauge.finish(machine);
  REQUIRE(machine.references.size() == 6);
  for (const KernelTime& one : machine.references)
    CHECK(one.samples_ns.size() == 2 * calibration_rounds + figures);
  // Drives keep the rates that they were measured with.
  CHECK(machine.ssd.read == before.ssd.read);
  CHECK(machine.ssd.write == before.ssd.write);
}

TEST_CASE("Every rate is divided by the drift of its own reference, and no other") {
  Machine machine = load_machine("testbed");
  machine.kernels = {{"forward", "f", 1e9, 1000, 0, {900, 1100}},
                     {"gradient_norm", "n", 0, 1000, 0, {}},
                     {"barrier", "waking a waiting lane", 0, 1000, 0, {}},
                     {"h2d", "bytes=8388608,beside=d2h", 0, 1000, 0, {}},
                     {"h2d", "bytes=8388608", 0, 1000, 0, {}}};
  machine.ssd.total = 1e9;
  const Machine slow = drifted_machine(machine, {{"compute", 2.0}, {"read", 4.0}, {"write", 2.0}});
  CHECK(slow.gpu.flops == machine.gpu.flops / 2);
  CHECK(slow.kernels[0].median_ns == 2000);
  CHECK(slow.kernels[0].samples_ns == std::vector<std::int64_t>{1800, 2200});
  CHECK(slow.kernels[1].median_ns == 1000);
  CHECK(slow.kernels[2].median_ns == 1000);
  CHECK(slow.ssd.read == machine.ssd.read / 4);
  CHECK(slow.ssd.write == machine.ssd.write / 2);
  CHECK(slow.ssd.total == machine.ssd.total / 3);
  CHECK(slow.ssd.read_latency_ns == 4 * machine.ssd.read_latency_ns);
  CHECK(slow.host.adam_params_per_second == machine.host.adam_params_per_second);
  CHECK(slow.pcie.h2d == machine.pcie.h2d);
  const Machine memory = drifted_machine(machine, {{"adam", 2.0}, {"copy", 4.0}, {"copies", 8.0}});
  CHECK(memory.host.adam_params_per_second == machine.host.adam_params_per_second / 2);
  CHECK(memory.kernels[1].median_ns == 2000);
  CHECK(memory.pcie.d2h == machine.pcie.d2h / 4);
  CHECK(memory.host.bandwidth == machine.host.bandwidth / 8);
  CHECK(memory.kernels[3].median_ns == 8000);  // both ways at once, as the host's bandwidth
  CHECK(memory.kernels[4].median_ns == 4000);
  CHECK(memory.gpu.flops == machine.gpu.flops);
}

TEST_CASE("The drift is said for the processor, the memory and the drives") {
  CHECK(drift_text({{"compute", 1.1}, {"adam", 1.2}, {"copy", 1.08}, {"read", 1.03}}, 0.12) ==
        "12 % slower than when it was calibrated (compute 10 %, memory 14 %, drive 3 %)");
  CHECK(drift_text({{"compute", 0.9}}, -0.1) ==
        "10 % faster than when it was calibrated (compute -10 %)");
  CHECK(drift_text({{"compute", 1.0}}, 0.001) == "as fast as when it was calibrated (compute 0 %)");
}

TEST_CASE("Reference kernels have times of every kind, and leave no file") {
  const test::TemporaryFolder folder;
  {
    const std::vector<KernelTime> times = ReferenceKernels({folder.path()}).take(2);
    REQUIRE(times.size() == 6);
    for (const KernelTime& time : times) {
      INFO(time.kind);
      CHECK(time.samples_ns.size() == 2);
      CHECK(time.median_ns > 0);
    }
    CHECK(joined(times, times).front().samples_ns.size() == 4);
    CHECK(drift_between(times, times) == Drift{{"compute", 1.0},
                                               {"adam", 1.0},
                                               {"copy", 1.0},
                                               {"copies", 1.0},
                                               {"read", 1.0},
                                               {"write", 1.0}});
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("References after a training are those before the next one, where that begins at once") {
  const auto samples = [](const std::vector<KernelTime>& references) {
    std::vector<std::int64_t> all;
    for (const KernelTime& one : references)
      all.insert(all.end(), one.samples_ns.begin(), one.samples_ns.end());
    return all;
  };
  ReferenceKernels kernels({});
  const auto first = samples(kernels.before_training());
  CHECK(first.size() == 4 * reference_rounds);
  const auto after = samples(kernels.after_training());
  CHECK(after != first);
  CHECK(samples(kernels.before_training()) == after);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  CHECK(samples(kernels.before_training()) != after);
  CHECK(samples(kernels.after_training()) != after);
}

TEST_CASE("An interval stated to hold 90 % of runs holds 85 to 95 % of simulated noisy ones") {
  // The whole machine is fast or slow during a run, by a factor that is log-normal with a standard
  // deviation of 4 %; the references' samples are drawn from it as well.
  constexpr double deviation = 0.04;
  std::mt19937_64 random(17);
  std::normal_distribution<double> normal;
  const auto factor = [&] { return std::exp(deviation * normal(random)); };
  Machine machine = load_machine("testbed");
  for (const char* kind : {"compute", "adam", "copy", "copies", "read", "write"}) {
    std::vector<std::int64_t> samples;
    for (int i = 0; i < 400; ++i) samples.push_back(std::llround(1e7 * factor()));
    machine.references.push_back(kernel_time(kind, "s", 0, std::move(samples)));
  }
  for (const char* policy : {"resident", "fuyou"}) {
    const Schedule schedule = small_schedule(machine, policy);
    const SimulationResult result = simulate(schedule);
    const auto uncertainty = step_uncertainty(schedule, result, machine);
    REQUIRE(uncertainty);
    int inside = 0;
    constexpr int runs = 400;
    for (int run = 0; run < runs; ++run) {
      Drift drift;
      const double slower = factor();
      for (const KernelTime& one : machine.references) drift[one.kind] = slower;
      const double step = simulate(schedule, drifted_machine(machine, drift)).step_seconds;
      inside += step >= uncertainty->low(result.step_seconds) &&
                        step <= uncertainty->high(result.step_seconds)
                    ? 1
                    : 0;
    }
    INFO(policy << ": " << inside << " of " << runs);
    CHECK(inside >= 0.85 * runs);
    CHECK(inside <= 0.95 * runs);
  }
}

}  // namespace spillway
