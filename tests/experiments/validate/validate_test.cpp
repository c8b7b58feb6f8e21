#include "experiments/validate/validate.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "policies/common/policy.hpp"
#include "policies/common/run_record.hpp"
#include "sim/to_trace.hpp"

namespace spillway {
namespace {

Schedule tiny_schedule(const std::string& policy) {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = load_machine("testbed");
  problem.workload = {8, 2, 64, Precision::fp32, GradientWidth::automatic};
  return build_schedule(problem, policy, 5);
}

// A trace as if the machine had done exactly what the simulator says.
Trace simulated_trace(const Schedule& schedule) {
  Trace trace = to_trace(schedule, simulate(schedule));
  trace.metadata = make_trace(schedule, "executor").metadata;
  return trace;
}

TEST_CASE("a trace that is the prediction itself has no error at all") {
  for (const PolicyInfo& policy : builtin_policies()) {
    const Schedule schedule = tiny_schedule(policy.name);
    const Validation v = validate_trace(simulated_trace(schedule), "trace");
    INFO(policy.name);
    CHECK(v.schedule.fingerprint() == schedule.fingerprint());
    CHECK(v.comparison.error == 0);
    for (const Quantity& kind : v.comparison.kinds) CHECK(kind.error == 0);
    CHECK_FALSE(v.comparison.first_divergence);
    CHECK(v.comparison.matched_tasks == schedule.tasks().size());
    for (const CriticalShare& share : v.critical_path)
      CHECK(share.predicted_seconds == share.measured_seconds);
  }
}

TEST_CASE("a run on a machine that has become slower is met once its references are known") {
  Problem problem = tiny_schedule("fuyou").problem();
  problem.machine.references = {{"compute", "c", 0, 1000, 0.02, {1000, 1000}},
                                {"adam", "a", 0, 1000, 0.02, {1000, 1000}},
                                {"read", "r", 0, 1000, 0.02, {1000, 1000}}};
  const Schedule schedule = build_schedule(problem, "fuyou", 5);
  const std::vector<KernelTime> before = {{"compute", "c", 0, 0, 0, {1200, 1200}},
                                          {"adam", "a", 0, 0, 0, {1000, 1000}},
                                          {"read", "r", 0, 0, 0, {3000, 3000}}};
  const Machine slow = drifted_machine(problem.machine, {{"compute", 1.2}, {"read", 3.0}});
  Trace measured = to_trace(schedule, simulate(schedule, slow));
  measured.metadata = make_trace(schedule, "executor").metadata;
  CHECK_FALSE(validate_trace(measured, "trace").corrected);
  record_references(measured, before, before);
  const Validation v = validate_trace(measured, "trace");
  CHECK(v.comparison.error < -0.1);  // as calibrated
  REQUIRE(v.corrected);
  CHECK(v.corrected->drift == Drift{{"compute", 1.2}, {"adam", 1.0}, {"read", 3.0}});
  CHECK(v.corrected->error == Approx(0).margin(1e-9));
  for (const auto& [reference, samples] : v.corrected->samples) CHECK(samples == 4);
  REQUIRE(v.uncertainty);
  const auto as_calibrated = step_uncertainty(v.schedule, v.predicted, problem.machine);
  CHECK(v.uncertainty->common() == Approx(as_calibrated->common() / 2));
  CHECK(v.expected_seconds() == v.corrected->predicted_seconds);
  // A throttle sets the speed, whatever the machine's is.
  measured.set_metadata("throttle", "\"gpu=1GFLOPS\"");
  CHECK_FALSE(validate_trace(measured, "trace").corrected);
}

TEST_CASE("damaged references of a trace are refused with a reason") {
  Trace trace = simulated_trace(tiny_schedule("resident"));
  trace.set_metadata("references", "[]");
  CHECK_THROWS_AS(recorded_references(trace), InputError);
}

TEST_CASE("a machine twice as fast predicts half the time, and the report says so") {
  const Schedule schedule = tiny_schedule("resident");
  const Trace measured = simulated_trace(schedule);
  Machine fast = schedule.problem().machine;
  fast.gpu.flops *= 2;
  fast.gpu.memory = 0;  // limits stay as recorded: this must not matter
  fast.gpu.memory_bandwidth *= 2;
  fast.gpu.launch_ns = 0;
  const Validation v = validate_trace(measured, "trace", fast);
  const auto backward = std::find_if(v.comparison.kinds.begin(), v.comparison.kinds.end(),
                                     [](const Quantity& kind) { return kind.name == "backward"; });
  REQUIRE(backward != v.comparison.kinds.end());
  CHECK(backward->error == Approx(-0.5).margin(0.01));
  REQUIRE(v.comparison.first_divergence);
}

TEST_CASE("a trace without its run's record, or without rates, is refused with what to do") {
  const Schedule schedule = tiny_schedule("fuyou");
  Trace bare = simulated_trace(schedule);
  bare.metadata.clear();
  CHECK_THROWS_AS(validate_trace(bare, "bare.json"), InputError);

  Trace other = simulated_trace(schedule);
  other.set_metadata("fingerprint", "\"0123456789abcdef\"");
  CHECK_THROWS_AS(validate_trace(other, "other.json"), InputError);

  Problem no_rates = schedule.problem();
  no_rates.machine = {};
  no_rates.machine.gpu.is_cpu = true;
  no_rates.machine.gpu.memory = no_rates.machine.host.memory = no_rates.machine.ssd.capacity =
      1 << 30;
  Trace unknown = simulated_trace(schedule);
  unknown.metadata = make_trace(build_schedule(no_rates, "fuyou", 5), "executor").metadata;
  CHECK_THROWS_AS(validate_trace(unknown, "unknown.json"), InputError);
  CHECK_NOTHROW(validate_trace(unknown, "unknown.json", load_machine("testbed")));
}

}  // namespace
}  // namespace spillway
