// Why one plan is faster: sums that have to hold, on simulated plans of a small model.
#include "experiments/why/why.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/why/why_json.hpp"
#include "policies/common/policy.hpp"

namespace spillway {
namespace {

Problem tiny() {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = load_machine("testbed");
  problem.workload.batch = problem.workload.micro_batch = 4;
  problem.workload.sequence = 64;
  problem.workload.precision = Precision::fp32;
  return problem;
}

AskedPlan plan(const std::string& policy, std::int64_t micro_batch) {
  Problem problem = tiny();
  problem.workload.micro_batch = micro_batch;
  const Candidates found = evaluate_candidates(problem, false, {policy}, {});
  REQUIRE(found.chosen);
  return {policy, found.all[*found.chosen]};
}

Why why(const AskedPlan& a, const AskedPlan& b, unsigned threads = 1) {
  AblationOptions options;
  options.threads = threads;
  return explain_difference(tiny(), a, b, evaluate, true, options);
}

TEST_CASE("the gains of the steps add up to the whole difference, each setting in one step") {
  for (const auto& [a, b] : {std::pair("zero-infinity", "greedysnake"),
                             std::pair("greedysnake", "fuyou:optimizer=serial"),
                             std::pair("zero-offload", "zero-infinity:pipeline_read=on"),
                             std::pair("fuyou", "fuyou:optimizer=naive,recompute=needed")}) {
    INFO(a << " to " << b);
    const Why answer = why(plan(a, 4), plan(b, 2));
    const Ablation& ablation = answer.ablation;
    REQUIRE(ablation.why_not.empty());
    REQUIRE_FALSE(ablation.steps.empty());
    // Both are exactly what their plans say.
    CHECK(answer.residual_of_a() == 0);
    CHECK(answer.residual_of_b() == 0);
    double at = answer.a_seconds();
    std::multiset<std::size_t> changed;
    for (const AblationStep& step : ablation.steps) {
      CHECK(step.before_seconds == at);
      at = step.after_seconds;
      changed.insert(step.settings.begin(), step.settings.end());
    }
    CHECK(at == answer.b_seconds());
    // No setting gains more by itself than what is changed first.
    for (const SettingEffect& effect : ablation.effects) {
      if (effect.alone.seconds)
        CHECK(*effect.alone.seconds <=
              std::max(ablation.steps[0].gain(), 0.01 * answer.a_seconds()));
    }
    std::multiset<std::size_t> all;
    for (std::size_t k = 0; k < answer.settings.all().size(); ++k) all.insert(k);
    CHECK(changed == all);
  }
}

TEST_CASE("critical paths add up to the steps, stalls to what the GPU is idle") {
  const Why answer = why(plan("zero-infinity", 4), plan("greedysnake", 2));
  double a = 0, b = 0, idle_a = 0, idle_b = 0;
  for (const TimeDifference& one : answer.critical_path) {
    a += one.a;
    b += one.b;
  }
  for (const TimeDifference& one : answer.stalls) {
    idle_a += one.a;
    idle_b += one.b;
  }
  CHECK(a == Approx(answer.a_seconds()));
  CHECK(b == Approx(answer.b_seconds()));
  const auto idle = [](const PlanProfile& profile) {
    const auto gpu = static_cast<std::size_t>(Lane::gpu_compute);
    const SimulationResult& result = *profile.plan.evaluation.result;
    return (1 - result.lanes[gpu].busy_fraction) * result.step_seconds;
  };
  CHECK(idle_a == Approx(idle(answer.a)));
  CHECK(idle_b == Approx(idle(answer.b)));
}

TEST_CASE("a profile has the bytes of each lane, and a home for every byte of model state") {
  for (const char* policy : {"resident", "zero-infinity", "greedysnake:optimizer_ssd=0.5"}) {
    INFO(policy);
    const PlanProfile profile = profile_of(plan(policy, 2).plan);
    const SimulationResult& result = *profile.plan.evaluation.result;
    for (int l = 0; l < lane_count; ++l) {
      double bytes = 0;
      for (const ClassWork& work : profile.work) {
        if (static_cast<int>(work.of.lane) == l) bytes += work.bytes;
      }
      INFO(to_string(static_cast<Lane>(l)));
      CHECK(bytes == Approx(result.lanes[static_cast<std::size_t>(l)].bytes));
    }
    const Problem& problem = profile.plan.evaluation.schedule.problem();
    std::uint64_t parameters = 0, state = 0;
    for (const KindPlaces& places : profile.places) {
      if (!places.home) continue;
      const TierAmounts& home = *places.home;
      const std::uint64_t all = home[0] + home[1] + home[2];
      (places.kind == BufferKind::parameters ? parameters : state) += all;
      // What rests in a memory is live there at all times.
      for (std::size_t tier = 0; tier < tier_count; ++tier) CHECK(places.most[tier] >= home[tier]);
    }
    const auto elements = static_cast<std::uint64_t>(problem.model.parameters());
    // Each tensor is padded to the alignment of buffers: less than a percent in all.
    CHECK(parameters >= elements * problem.parameter_bytes());
    CHECK(parameters < elements * problem.parameter_bytes() * 101 / 100);
    CHECK(state >= elements * problem.state_bytes());
    CHECK(state < elements * problem.state_bytes() * 101 / 100);
  }
}

TEST_CASE("the answer is the same on one thread and on several") {
  const AskedPlan a = plan("zero-infinity", 4), b = plan("greedysnake", 2);
  const auto text = [&](unsigned threads) { return to_json(why(a, b, threads)).dump(); };
  CHECK(text(1) == text(4));
}

TEST_CASE("an order of work that no plan says is a step of its own") {
  // A sharded policy on one rank: its updates come in the order of forward.
  const Why answer = why(plan("fsdp", 4), plan("greedysnake", 4));
  REQUIRE(answer.ablation.why_not.empty());
  double gains = answer.residual_of_a() + answer.residual_of_b();
  for (const AblationStep& step : answer.ablation.steps) gains += step.gain();
  CHECK(gains == Approx(answer.a_seconds() - answer.b_seconds()));
}

}  // namespace
}  // namespace spillway
