#include "experiments/tune/lower_bound.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "experiments/plan/evaluate.hpp"
#include "tests/experiments/tune/random_plans.hpp"

namespace spillway {
namespace {

using test::Dice;
using test::OnePlan;

// The machine with no more memory than the schedule takes.
Problem squeezed(const Schedule& schedule) {
  Problem problem = schedule.problem();
  problem.machine.gpu.memory = schedule.use(Tier::gpu).peak_bytes;
  problem.machine.host.memory = schedule.use(Tier::host).peak_bytes;
  problem.machine.ssd.capacity = schedule.use(Tier::ssd).peak_bytes;
  return problem;
}

// What a schedule takes over the bound of its micro-batch and row, with no more memory than it has.
double over_bound(const Schedule& schedule, double step_seconds, int row) {
  const auto bound = lower_bound_of(squeezed(schedule), row);
  return bound ? step_seconds / bound->seconds : 0;
}

struct Tally {
  int plans = 0, refused = 0;
  double least = 1e300;
};

// Random plans, each on a machine with as much memory as it takes.
Tally try_random_plans(std::uint64_t first, std::uint64_t count) {
  Tally tally;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Dice dice(seed);
    const Problem problem = test::random_problem(dice);
    const Plan plan = test::random_plan(dice, problem);
    const int row =
        plan.order.row > 0 ? plan.order.row : static_cast<int>(problem.workload.micro_batches());
    OnePlan policy(plan);
    std::optional<Schedule> schedule;
    try {
      schedule.emplace(build_schedule(problem, policy, 12));
    } catch (const InputError&) {
      ++tally.refused;
      continue;
    }
    const double seconds = simulate(*schedule).step_seconds;
    const double ratio = over_bound(*schedule, seconds, row);
    ++tally.plans;
    tally.least = std::min(tally.least, ratio);
    INFO("seed " << seed << ": " << to_text(plan));
    INFO(fmt::format("{} layers, {} of {} sequences, {}", problem.model.layers,
                     problem.workload.micro_batch, problem.workload.batch,
                     to_string(problem.workload.clip)));
    CHECK(ratio >= 1);
  }
  return tally;
}

TEST_CASE("no random plan is faster than the bound of its micro-batch and row") {
  const Tally tally = try_random_plans(1, 1000);
  CHECK(tally.plans > tally.refused);
  CHECK(tally.least < 1.02);
}

}  // namespace
}  // namespace spillway
