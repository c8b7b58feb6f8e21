// What a framework adds to a schedule: memory, bytes, passes, waits; and what is wrong with its
// text.
#include <catch2/catch.hpp>

#include <set>

#include "policies/common/policy.hpp"
#include "policies/cost/costs.hpp"
#include "policies/framework/framework.hpp"
#include "policies/model/saved.hpp"
#include "policies/model/scratch.hpp"
#include "test_paths.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

std::uint64_t page(std::uint64_t bytes) {
  return (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
}

Schedule laid_over(Problem problem, const std::string& policy, const std::string& framework) {
  problem.framework = framework;
  return build_schedule(problem, policy, 2);
}

std::uint64_t peak(const Problem& problem, const std::string& policy, const std::string& framework,
                   Tier tier) {
  return laid_over(problem, policy, framework).use(tier).peak_bytes;
}

}  // namespace

TEST_CASE("Our own framework adds nothing, every other built-in one something") {
  const Problem problem = tiny_problem(3, 2);
  for (const char* policy : {"zero-infinity", "zero-offload", "deep-optimizer-states"}) {
    INFO(policy);
    const std::uint64_t own = build_schedule(problem, policy, 2).fingerprint();
    CHECK(laid_over(problem, policy, "spillway").fingerprint() == own);
    for (const char* framework : {"deepspeed-0.9", "deep-optimizer-states", "greedysnake"})
      CHECK(laid_over(problem, policy, framework).fingerprint() != own);
  }
}

TEST_CASE("The hash of a framework is of its file alone") {
  const std::string own = framework_hash("spillway");
  CHECK(own.size() == 16);
  CHECK(framework_hash("spillway:memory.gpu=1MB") == own);
  CHECK(framework_hash(SPILLWAY_SOURCE_DIR "/frameworks/spillway.toml") == own);
  CHECK(framework_hash("deepspeed-0.9") != own);
}

TEST_CASE("A framework takes memory that no task touches") {
  Problem problem = tiny_problem(3, 1);
  problem.model = load_model("gpt2-124m", {"layers=3"});
  problem.workload.sequence = 1024;
  const auto N = static_cast<std::uint64_t>(problem.model.parameters());
  for (const std::string policy : {"zero-infinity", "zero-offload"}) {
    for (const std::int64_t b : {1, 5, 16}) {
      problem.workload.batch = problem.workload.micro_batch = b;
      // b layers' worth of recomputation and gradients (T (F + 6 C) elements), or logits and their
      // gradient in fp32; scratch for one sequence is there anyway.
      const std::uint64_t layer = saved_bytes(problem, gpt_saved::all, 1) + 2 * 1024 * 10 * 768;
      const std::uint64_t scratch = backward_scratch_bytes(problem, saved_none);
      const auto sequences = static_cast<std::uint64_t>(b);
      const std::uint64_t logits = 8 * sequences * 1024 * 50257;
      const std::uint64_t beyond =
          page(std::max(sequences * layer, logits) - std::min(scratch, logits));
      const auto live = [&](const char* framework) {
        return laid_over(problem, policy, framework).use(Tier::gpu).live_peak_bytes;
      };
      CHECK(live("deepspeed-0.9") - live("deepspeed-0.9:memory.whole_micro_batch=false") == beyond);
    }
    CHECK(
        peak(problem, policy, "deepspeed-0.9", Tier::host) -
            peak(problem, policy, "deepspeed-0.9:memory.host_bytes_per_parameter=0", Tier::host) ==
        page(N));
  }
}

TEST_CASE(
    "An update on the CPU takes as long under every policy priced in one framework, in bf16") {
  const auto seconds_per_parameter = [](const std::string& policy, const std::string& framework) {
    Problem problem = tiny_problem(3, 1);
    problem.machine.host.adam_params_per_second = 1e9;
    problem.machine.host.adam_bytes_per_param = 28;
    problem.machine.host.bandwidth = 0;
    problem.machine.host.wake_ns = 0;
    const Schedule schedule = laid_over(problem, policy, framework);
    const Costs costs(schedule.problem());
    double seconds = 0, parameters = 0;
    for (const Task& task : schedule.tasks()) {
      if (task.kind != TaskKind::optimizer || task.lane != Lane::cpu_optimizer) continue;
      seconds += costs.seconds(task);
      parameters += static_cast<double>(task.params);
    }
    REQUIRE(parameters > 0);
    return seconds / parameters;
  };
  const double passes = static_cast<double>(load_framework("deepspeed-0.9").cpu_pass_bytes);
  REQUIRE(passes > 0);
  for (const char* policy : {"zero-infinity", "zero-offload", "deep-optimizer-states:stride=2",
                             "fuyou", "greedysnake"}) {
    INFO(policy);
    CHECK(seconds_per_parameter(policy, "spillway") == Approx(1e-9));
    CHECK(seconds_per_parameter(policy, "deepspeed-0.9") == Approx((1 + passes / 28) * 1e-9));
  }
}

TEST_CASE("Copies both ways are on one lane where the framework has one") {
  const Schedule schedule =
      laid_over(tiny_problem(3, 2), "zero-offload", "spillway:copies.one_lane=true");
  for (const Task& task : schedule.tasks()) {
    if (task.kind == TaskKind::d2h) CHECK(task.lane == Lane::pcie_h2d);
  }
}

TEST_CASE("What is wrong with a framework is said with what would be right") {
  CHECK_THROWS_WITH(load_framework("deepspeed"), Catch::Contains("unknown framework deepspeed"));
  CHECK_THROWS_WITH(load_framework("deepspeed-0.9:gradient.byts=2"),
                    Catch::Contains("gradient.byts"));
  CHECK_THROWS_WITH(load_framework("deepspeed-0.9:gradient.bytes=3"),
                    Catch::Contains("it is not 0, 2 or 4"));
  CHECK_THROWS_WITH(load_framework("spillway:host.operators=20"),
                    Catch::Contains("host.operator: it is missing"));
  CHECK_THROWS_WITH(load_framework("spillway:host.operator=10us"),
                    Catch::Contains("host.operators: it is missing"));
  CHECK_THROWS_WITH(load_framework("spillway:host.sync=2000s"),
                    Catch::Contains("more than 1000 s"));
  CHECK_THROWS_WITH(parse_framework("name = \"x\"", "x.toml"), Catch::Contains("description"));
  CHECK_THROWS_WITH(parse_framework("name = \"x\"\ndescription = \"y\"\n[[wait]]\nat = "
                                    "\"lunch\"\nfor = \"all\"\n",
                                    "x.toml"),
                    Catch::Contains("lunch"));
}
