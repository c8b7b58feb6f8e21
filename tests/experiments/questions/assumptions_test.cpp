// How far assumed values move a step: by the schedule as it stands, at both ends of each range.
#include "experiments/questions/assumptions.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "experiments/plan/evaluate.hpp"
#include "tests/policies/machine/machine_text.hpp"

namespace spillway {
namespace {

Problem problem_on(const Machine& machine) {
  Problem problem;
  problem.model = load_model("gpt2-355m");
  problem.machine = machine;
  problem.workload = {8, 2, 512, Precision::bf16, GradientWidth::automatic};
  return problem;
}

AssumptionEffects effects_on(const Machine& machine, const std::string& policy) {
  const Evaluation evaluation = evaluate(problem_on(machine), policy);
  REQUIRE(evaluation.result);
  return effects_of_assumptions(evaluation.schedule, *evaluation.result);
}

const AssumedEffect& effect_of(const AssumptionEffects& effects, const std::string& key) {
  const auto found =
      std::find_if(effects.effects.begin(), effects.effects.end(), [&](const AssumedEffect& one) {
        return std::find(one.value.keys.begin(), one.value.keys.end(), key) != one.value.keys.end();
      });
  REQUIRE(found != effects.effects.end());
  return *found;
}

TEST_CASE("a file without law, pageable and Adam rates: each end is the step simulated with it") {
  const Machine machine = parse_machine(small_machine + small_drives, "m.toml");
  const Evaluation evaluation = evaluate(problem_on(machine), "zero-infinity");
  REQUIRE(evaluation.result);
  const AssumptionEffects effects = effects_of_assumptions(evaluation.schedule, *evaluation.result);
  const auto seconds = [&](const char* setting) {
    return simulate(evaluation.schedule,
                    parse_machine(small_machine + small_drives, "m.toml", {setting}))
        .step_seconds;
  };
  const AssumedEffect& law = effect_of(effects, "ssd.law");
  CHECK(law.low_step_seconds == seconds("ssd.law=simplex"));
  CHECK(law.high_step_seconds == seconds("ssd.law=duplex"));
  CHECK(*law.low_step_seconds > effects.step_seconds);  // reads and writes in turns
  CHECK(*law.high_step_seconds <= effects.step_seconds);
  // 2 Gparam/s by the rule.
  CHECK(effect_of(effects, "host.adam_rate").low_step_seconds ==
        seconds("host.adam_rate=0.8Gparam/s"));
}

TEST_CASE("what moves the step most comes first, and together they move it further than any") {
  const AssumptionEffects effects =
      effects_on(parse_machine(small_machine + small_drives, "m.toml"), "zero-infinity");
  REQUIRE(effects.effects.size() > 5);
  CHECK(effects.named() > 0);
  CHECK(effects.named() < effects.effects.size());
  for (std::size_t i = 1; i < effects.effects.size(); ++i)
    CHECK(effects.share(effects.effects[i]) <= effects.share(effects.effects[i - 1]));
  CHECK(effects.fastest_seconds <= effects.step_seconds);
  for (const AssumedEffect& one : effects.effects) {
    INFO(one.value.name());
    if (one.low_step_seconds) CHECK(*one.low_step_seconds <= effects.slowest_seconds * (1 + 1e-9));
    if (one.high_step_seconds)
      CHECK(*one.high_step_seconds >= effects.fastest_seconds * (1 - 1e-9));
  }
}

TEST_CASE("what no task does moves nothing: drives, copies and the CPU's Adam of policy resident") {
  std::vector<std::string> simulated;
  Machine machine = parse_machine(small_machine + small_drives, "m.toml", {"gpu.memory=40GB"});
  const Evaluation evaluation = evaluate(problem_on(machine), "resident");
  REQUIRE(evaluation.result);
  const AssumptionEffects effects =
      effects_of_assumptions(evaluation.schedule, *evaluation.result,
                             [&](const std::string& what) { simulated.push_back(what); });
  for (const char* key : {"ssd.law", "ssd.read_latency", "pcie.pageable_h2d", "host.adam_rate"}) {
    INFO(key);
    const AssumedEffect& one = effect_of(effects, key);
    CHECK(one.low_step_seconds == effects.step_seconds);
    CHECK(one.high_step_seconds == effects.step_seconds);
    for (const std::string& what : simulated) CHECK_THAT(what, !Catch::Contains(key));
  }
  CHECK(effect_of(effects, "gpu.adam_rate").low_step_seconds > effects.step_seconds);
}

TEST_CASE("what moves no time has no step of its own, and comes last") {
  const AssumptionEffects effects = effects_on(load_machine("rtx4090-2ssd"), "zero-infinity");
  CHECK_FALSE(effects.effects.back().value.moves_time());
  CHECK_FALSE(effects.effects.back().low_step_seconds);
  CHECK(effects.share(effects.effects.back()) == 0);
}

TEST_CASE("a machine that assumes nothing: nothing moves the step") {
  Problem problem = problem_on(load_machine("testbed"));
  problem.model = load_model("gpt-tiny");
  problem.workload = {2, 2, 16, Precision::fp32, GradientWidth::automatic};
  for (const char* key : {"host.sync", "ssd.law"}) problem.machine.sources[key] = "as throttled";
  const Evaluation evaluation = evaluate(problem, "zero-infinity");
  REQUIRE(evaluation.result);
  const AssumptionEffects effects = effects_of_assumptions(evaluation.schedule, *evaluation.result);
  CHECK(effects.named() == 0);
  CHECK(effects.fastest_seconds == effects.step_seconds);
  CHECK(effects.slowest_seconds == effects.step_seconds);
}

}  // namespace
}  // namespace spillway
