// A steady step told by some of a schedule's steps against all of them.
#include "experiments/plan/steady_results.hpp"

#include <catch2/catch.hpp>

#include "experiments/plan/evaluate.hpp"
#include "experiments/plan/write_cache.hpp"
#include "policies/common/policy.hpp"

namespace spillway {
namespace {

Problem problem_on(const std::vector<std::string>& overrides, const std::string& model = "gpt-13b",
                   std::int64_t batch = 16) {
  Problem problem;
  problem.model = load_model(model);
  problem.machine = load_machine("rtx4090-12ssd", overrides);
  problem.workload.batch = batch;
  problem.workload.micro_batch = 4;
  return problem;
}

void check_same(const SimulationResult& one, const SimulationResult& full) {
  constexpr double nearly = 1e-6;
  CHECK(one.tasks.empty());
  CHECK(one.step_seconds == Approx(full.step_seconds).epsilon(1e-8));
  CHECK(one.tokens_per_second == Approx(full.tokens_per_second).epsilon(1e-8));
  CHECK(one.phases.forward == Approx(full.phases.forward).epsilon(nearly));
  CHECK(one.phases.backward == Approx(full.phases.backward).epsilon(nearly));
  CHECK(one.phases.optimizer == Approx(full.phases.optimizer).epsilon(nearly).margin(1e-6));
  CHECK(one.bound_seconds == Approx(full.bound_seconds));
  CHECK(one.bound_by == full.bound_by);
  CHECK(one.ssd_bytes_written_per_step == Approx(full.ssd_bytes_written_per_step));
  CHECK(one.hardware_tflops == Approx(full.hardware_tflops));
  CHECK(one.extrapolates == full.extrapolates);
  for (std::size_t lane = 0; lane < one.lanes.size(); ++lane) {
    CHECK(one.lanes[lane].busy_fraction ==
          Approx(full.lanes[lane].busy_fraction).epsilon(nearly).margin(1e-9));
    CHECK(one.lanes[lane].bytes == Approx(full.lanes[lane].bytes));
  }
}

TEST_CASE("a step that repeats is told by some steps as by all, whatever was asked before") {
  SteadyResults results;
  int repeat = 0, all = 0;
  for (const char* policy :
       {"greedysnake", "greedysnake:alpha=0.5", "greedysnake:alpha=1,snake=off", "fuyou",
        "fuyou:optimizer=naive", "fuyou:optimizer=serial", "zero-infinity", "zero-offload",
        "deep-optimizer-states", "greedysnake:retention=nearest"}) {
    for (const char* flops : {"gpu.flops=40TFLOPS", "gpu.flops=320TFLOPS"}) {
      for (const char* drives : {"ssd.count=1", "ssd.count=12"}) {
        INFO(policy << " " << flops << " " << drives);
        const Problem problem = problem_on({flops, drives});
        const Schedule schedule = build_schedule(problem, policy, default_steps);
        if (!schedule.fits()) continue;
        const SimulationResult full = simulate(schedule);
        check_same(results.of(schedule).result, full);
        const SteadyResult alone = SteadyResults().of(schedule);
        check_same(alone.result, full);
        CHECK(alone.by_some_steps == results.of(schedule).by_some_steps);
        repeat += alone.by_some_steps ? 1 : 0;
        ++all;
      }
    }
  }
  // Most are told by some of their steps; those of zero-infinity and others are not.
  CHECK(repeat > all / 2);
  CHECK(repeat < all);
}

TEST_CASE("tasks of steps that repeat are those of the step before, and wait for the same") {
  const Schedule schedule = build_schedule(problem_on({}), "greedysnake:alpha=0.3", 6);
  const std::optional<Repetition> found = repetition_of(schedule);
  REQUIRE(found);
  CHECK(found->step <= 2);
  CHECK(found->tasks < schedule.tasks().size() * 3 / 4);
  for (TaskId task = found->from; task < found->tasks; ++task) {
    const Task &one = schedule.tasks()[task], &next = schedule.tasks()[task + found->per_step];
    CHECK(one.kind == next.kind);
    CHECK(one.layer == next.layer);
    CHECK(one.step + 1 == next.step);
  }
  // Too few steps to tell.
  CHECK_FALSE(repetition_of(build_schedule(problem_on({}), "greedysnake:alpha=0.3", 3)));
}

TEST_CASE("a write cache that training may stay in is looked at as ever") {
  Problem problem = problem_on({"ssd.count=2"});
  problem.machine.ssd.cache = 1'000'000'000'000;
  problem.machine.ssd.cache_write = 4 * problem.machine.ssd.write;
  problem.machine.ssd.cache_recovery = 1e12;
  const Schedule schedule = build_schedule(problem, "fuyou", default_steps);
  CHECK(SteadyResults().of(schedule).result.step_seconds ==
        simulate_long_run(schedule, problem.machine).step_seconds);
}

}  // namespace
}  // namespace spillway
