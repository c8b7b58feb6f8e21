// The machine a throttled run is predicted on: the base machine, with the rates as given.
#include "experiments/testbed/throttled_machine.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "policies/common/policy.hpp"
#include "policies/schedule/program.hpp"
#include "sim/simulate.hpp"

namespace spillway {
namespace {

// As calibrate writes it: a CPU, with one measured kernel.
Machine measured_machine() {
  Machine machine = load_machine("testbed");
  machine.gpu.flops = 80e9;
  machine.ssd.by_queue_depth[1] = {0.5, 0.5, 0.5};
  machine.ssd.by_queue_depth[32] = {1, 1, 1};
  KernelTime kernel;
  kernel.kind = "forward";
  kernel.shape = "some shape";
  kernel.flops = 4e9;
  kernel.median_ns = 50'000'000;
  kernel.samples_ns = {50'000'000};
  machine.kernels = {kernel};
  return machine;
}

Problem problem_on(const Machine& machine) {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = machine;
  problem.workload = {4, 2, 64, Precision::fp32, GradientWidth::automatic};
  return problem;
}

}  // namespace

TEST_CASE("Throttling nothing leaves the machine as it is") {
  const Machine machine = measured_machine();
  CHECK(machine_to_toml(throttled_machine(machine, {})) == machine_to_toml(machine));
}

TEST_CASE("The throttle's rates are laid over the machine as given, and nothing else is changed") {
  const Machine base = measured_machine();
  const Machine m = throttled_machine(
      base, parse_throttle("h2d=1GB/s,d2h=500MB/s,ssd.read=300MB/s,ssd.write=200MB/s,"
                           "ssd.total=400MB/s,gpu=20GFLOPS,optimizer=100Mparam/s"));
  CHECK(m.pcie.h2d == 1e9);
  CHECK(m.pcie.d2h == 5e8);
  const Machine::Ssd::Row drives = m.ssd.at_queue_depth();
  CHECK(drives.read == 3e8);
  CHECK(drives.write == 2e8);
  CHECK(drives.total == 4e8);
  CHECK(m.ssd.law == SsdLaw::capped);
  CHECK(m.gpu.flops == 20e9);
  CHECK(m.kernels[0].median_ns == 200'000'000);  // 4 GFLOP at 20 GFLOP/s
  CHECK(m.gpu.cores == Approx(20.0 / 80));       // it sleeps three quarters of the time
  CHECK(m.host.adam_params_per_second == 1e8);
  CHECK(m.host.adam_cores == Approx(1e8 / base.host.adam_params_per_second));
  CHECK(m.gpu.adam_params_per_second == base.gpu.adam_params_per_second);
  CHECK(m.host.bandwidth == base.host.bandwidth);
  CHECK(m.gpu.memory == base.gpu.memory);
}

TEST_CASE(
    "Without ssd.total reads and writes are independent, and one of them alone shares as before") {
  const Machine base = measured_machine();
  CHECK(throttled_machine(base, parse_throttle("ssd.read=300MB/s,ssd.write=200MB/s")).ssd.law ==
        SsdLaw::duplex);
  const Machine reads = throttled_machine(base, parse_throttle("ssd.read=300MB/s"));
  CHECK(reads.ssd.law == base.ssd.law);
  CHECK(reads.ssd.at_queue_depth().write == base.ssd.at_queue_depth().write);
}

TEST_CASE(
    "A throttled machine can be written, read and simulated, with the times of the throttle") {
  const Machine m = throttled_machine(measured_machine(), parse_throttle("gpu=1GFLOPS"));
  const Machine again = parse_machine(machine_to_toml(m), "machine.toml");
  CHECK(machine_to_toml(again) == machine_to_toml(m));
  // A GPU this slow sets the step: FLOPs / rate, but for the launches and the embedding.
  const Schedule schedule = build_schedule(problem_on(again), "resident", 6);
  double flops = 0;
  for (const Task& task : schedule.tasks()) flops += task.flops;
  CHECK(simulate(schedule).step_seconds == Approx(flops / schedule.steps() / 1e9).epsilon(0.02));
}

TEST_CASE("The machine file of a throttled run, throttled again, is the same machine") {
  const ThrottleRates rates = parse_throttle("gpu=1GFLOPS,ssd.read=300MB/s,optimizer=50Mparam/s");
  const Machine once = throttled_machine(measured_machine(), rates);
  Machine twice = throttled_machine(once, rates);
  twice.description = once.description;
  CHECK(machine_to_toml(twice) == machine_to_toml(once));
}

TEST_CASE("A trace says what it was throttled to") {
  Trace trace;
  CHECK_FALSE(recorded_throttle(trace).any());
  trace.set_metadata("throttle", "\"h2d=1GB/s\"");
  CHECK(recorded_throttle(trace) == parse_throttle("h2d=1GB/s"));
  for (const char* damaged : {"5", "null", "[\"h2d=1GB/s\"]", "\"h2d\""}) {
    INFO("throttle is " << damaged);
    trace.set_metadata("throttle", damaged);
    CHECK_THROWS_AS(recorded_throttle(trace), InputError);
  }
}

}  // namespace spillway
