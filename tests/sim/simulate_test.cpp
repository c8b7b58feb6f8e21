#include "sim/simulate.hpp"
#include "policies/model/operators.hpp"

#include <catch2/catch.hpp>

#include "sim/costed_schedule.hpp"
#include "tests/policies/cost/problems.hpp"
#include "tests/sim/random_problems.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr std::size_t lane(Lane l) { return static_cast<std::size_t>(l); }

Problem problem_of(const std::string& model, const std::string& machine, std::int64_t batch,
                   std::int64_t micro_batch) {
  Problem problem;
  problem.model = load_model(model);
  problem.machine = load_machine(machine);
  problem.workload.batch = batch;
  problem.workload.micro_batch = micro_batch;
  problem.workload.sequence = std::min<std::int64_t>(1024, problem.model.positions);
  if (problem.machine.gpu.is_cpu) problem.workload.precision = Precision::fp32;
  return problem;
}

std::vector<Problem> real_problems() {
  return {
      problem_of("gpt-small", "testbed", 8, 2),      problem_of("gpt2-124m", "a100-80gb", 8, 4),
      problem_of("gpt-13b", "rtx4090-12ssd", 8, 8),  problem_of("gpt-13b", "rtx4090-12ssd", 8, 2),
      problem_of("gpt-175b", "rtx4090-12ssd", 4, 4), problem_of("gpt-30b", "h200", 16, 4)};
}

// Policies that take the problem as it is; some refuse several micro-batches.
template <class Check>
void for_all_policies(int steps, const Check& check) {
  int checked = 0;
  for (const Problem& problem : real_problems()) {
    for (const PolicyInfo& policy : builtin_policies()) {
      INFO(policy.name << ", " << problem.model.name << " on " << problem.machine.name);
      try {
        make_policy(policy.name)->check(problem);
      } catch (const InputError&) {
        continue;
      }
      check(build_schedule(problem, policy.name, steps));
      ++checked;
    }
  }
  CHECK(checked >= 12);
}

}  // namespace

TEST_CASE("The steady step time, phases and busy fractions of a step worked out by hand") {
  // Each step, one after the other (every barrier waits for all before): 10 GB to the GPU at 10
  // GB/s = 1 s; a forward of 2 s; a backward of 4 s; 5 GB from the GPU at 5 GB/s = 1 s; Adam of 2e9
  // parameters at 1e9/s = 2 s. Step 0 also reads 7 GB = 1 s first. D = 11, 21, 31, 41; steps 2 and
  // 3 count: (41 - 21) / 2 = 10 s.
  Machine machine = round_machine();
  Problem problem = small_problem(machine);
  // A backward that recomputes the block (without its output) is not a whole number of forwards;
  // solve for it.
  problem.machine.gpu.flops = problem.model.layer_forward_flops(4, 128) / 2;
  Tasks tasks(problem);
  const double backward_seconds = (2 * problem.model.layer_forward_flops(4, 128) +
                                   recompute_flops(problem, saved_none, false)) /
                                  problem.machine.gpu.flops;
  for (int step = 0; step < 4; ++step) {
    tasks.program.at(step, Phase::forward);
    if (step == 0) {
      tasks.read(7 * gigabyte);
      tasks.program.barrier();
    }
    tasks.h2d(10 * gigabyte);
    tasks.program.barrier();
    tasks.forward();
    tasks.program.at(step, Phase::backward);
    tasks.backward();
    tasks.program.barrier();
    tasks.program.at(step, Phase::optimizer);
    tasks.d2h(5 * gigabyte);
    tasks.program.barrier();
    tasks.optimizer(Tier::host, 2000000000 / 2048 * 2048);
    tasks.program.barrier();
  }
  tasks.program.at(4, Phase::epilogue);
  tasks.write(50 * gigabyte);  // 10 s that belong to no step
  const SimulationResult result = simulate(tasks.finish(4));
  const double step_seconds = 1 + 2 + backward_seconds + 1 + 2;
  const auto about = [](double value) { return Approx(value).epsilon(5e-6); };
  CHECK(result.step_seconds == about(step_seconds));
  REQUIRE(result.step_ends_ns.size() == 4);
  CHECK(static_cast<double>(result.step_ends_ns[0]) * 1e-9 == about(1 + step_seconds));
  CHECK(result.step_seconds * 2 ==
        about(static_cast<double>(result.step_ends_ns[3] - result.step_ends_ns[1]) * 1e-9));
  CHECK(result.phases.forward == about(3));
  CHECK(result.phases.backward == about(backward_seconds));
  CHECK(result.phases.optimizer == about(3));
  CHECK(result.lanes[lane(Lane::pcie_h2d)].busy_fraction == about(1 / step_seconds));
  CHECK(result.lanes[lane(Lane::cpu_optimizer)].busy_fraction == about(2 / step_seconds));
  CHECK(result.lanes[lane(Lane::ssd_read)].busy_fraction == 0);
  CHECK(result.lanes[lane(Lane::pcie_h2d)].bytes == about(10e9));
  CHECK(result.lanes[lane(Lane::ssd_write)].bytes == 0);
  CHECK(result.ssd_bytes_written_per_step == 0);
  // The GPU is the busiest: 2 s + backward.
  CHECK(result.bound_by == "gpu.compute");
  CHECK(result.bound_seconds == about(2 + backward_seconds));
  CHECK(result.efficiency == about((2 + backward_seconds) / step_seconds));
  CHECK(result.tokens_per_second == about(4 * 128 / step_seconds));
  CHECK(result.model_tflops ==
        about(3 * problem.model.forward_flops(4, 128) / step_seconds * 1e-12));
  CHECK(result.hardware_tflops ==
        about((2 + backward_seconds) * problem.machine.gpu.flops / step_seconds * 1e-12));
}

TEST_CASE("With one step, the step time is when it ends") {
  Tasks tasks(small_problem(round_machine()));
  tasks.h2d(10 * gigabyte);
  const SimulationResult result = simulate(tasks.finish(1));
  CHECK(result.step_seconds == Approx(1).epsilon(5e-6));
  CHECK(result.bound_by == "pcie.h2d");
  CHECK(result.efficiency == Approx(1));
}

TEST_CASE("A resource shared by two lanes can set the bound") {
  // Read 7 GB and write 5 GB each step: 1 s each on its own, but r + w <= 7 GB/s: 12 / 7 s.
  Tasks tasks(small_problem(round_machine()));
  tasks.read(7 * gigabyte);
  tasks.write(5 * gigabyte);
  const SimulationResult result = simulate(tasks.finish(1));
  CHECK(result.bound_by == "ssd.total");
  CHECK(result.bound_seconds == Approx(12.0 / 7).epsilon(5e-6));
}

TEST_CASE("Every policy: bound <= steady step, and the run is no longer than everything in a row") {
  for_all_policies(4, [](const Schedule& schedule) {
    const SimulationResult result = simulate(schedule);
    CHECK(result.bound_seconds > 0);
    CHECK(result.step_seconds >= result.bound_seconds * (1 - 1e-6));
    CHECK(result.efficiency <= 1);

    const CostedSchedule costed = cost_schedule(schedule);
    const FairSharing sharing(costed.graph.resources, costed.graph.demands);
    double serial = 0;
    for (const Activity& activity : costed.graph.activities)
      serial += uncontended_ns(activity, sharing);
    std::int64_t makespan = 0;
    for (const SimulatedTask& task : result.tasks) makespan = std::max(makespan, task.end_ns);
    CHECK(static_cast<double>(makespan) <= serial + 1);

    CHECK(result.phases.forward + result.phases.backward + result.phases.optimizer ==
          Approx(result.step_seconds));
    for (const LaneUse& use : result.lanes) CHECK(use.busy_fraction <= 1 + 1e-9);
    CHECK(result.hardware_tflops >= result.model_tflops * (1 - 1e-9));
  });
}

TEST_CASE(
    "Every policy: dependencies and lane order hold, and the same input gives the same times") {
  for_all_policies(2, [](const Schedule& schedule) {
    const SimulationResult result = simulate(schedule);
    const SimulationResult again = simulate(schedule);
    std::array<std::int64_t, lane_count> lane_free{};
    const auto tasks = schedule.tasks();
    bool ordered = true, same = true, in_turn = true;
    for (TaskId t = 0; t < tasks.size(); ++t) {
      for (const TaskId next : schedule.successors(t)) {
        ordered = ordered && result.tasks[next].start_ns >= result.tasks[t].end_ns;
      }
      same = same && result.tasks[t].start_ns == again.tasks[t].start_ns &&
             result.tasks[t].end_ns == again.tasks[t].end_ns;
      in_turn = in_turn && result.tasks[t].start_ns >= lane_free[lane(tasks[t].lane)];
      lane_free[lane(tasks[t].lane)] = result.tasks[t].end_ns;
    }
    CHECK(ordered);
    CHECK(same);
    CHECK(in_turn);
  });
}

TEST_CASE("Every policy: halving all rates and doubling all latencies doubles the step time") {
  for (Problem problem : real_problems()) {
    for (const PolicyInfo& policy : builtin_policies()) {
      INFO(policy.name << ", " << problem.model.name << " on " << problem.machine.name);
      const double before = simulate(build_schedule(problem, policy.name, 2)).step_seconds;
      const Schedule slow = twice_as_slow(build_schedule(problem, policy.name, 2));
      CHECK(simulate(slow).step_seconds == Approx(2 * before).epsilon(1e-6));
    }
  }
}

TEST_CASE(
    "Where a real schedule shares nothing, the events agree with one longest-path pass, bit for "
    "bit") {
  // Everything resident: the GPU's lane is the only one that works.
  const Problem problem = problem_of("gpt2-124m", "a100-80gb", 8, 4);
  const CostedSchedule costed = cost_schedule(build_schedule(problem, "resident", 3));
  REQUIRE(runs_without_contention(costed.graph));
  CHECK(run_events(costed.graph) == longest_path(costed.graph));
}

TEST_CASE("GPT-175B with 16 micro-batches and four steps simulates") {
  const Schedule schedule =
      build_schedule(problem_of("gpt-175b", "rtx4090-12ssd", 16, 1), "zero-infinity", 4);
  const SimulationResult result = simulate(schedule);
  CHECK(schedule.tasks().size() > 50000);
  CHECK(result.step_seconds >= result.bound_seconds);
}

TEST_CASE("A schedule without tasks is refused") {
  Tasks tasks(small_problem(round_machine()));
  CHECK_THROWS_AS(simulate(tasks.finish(1)), InputError);
}
