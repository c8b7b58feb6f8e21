#include "experiments/questions/robustness.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "experiments/questions/assumptions.hpp"

namespace spillway {
namespace {

Problem problem_on(const Machine& machine) {
  Problem problem;
  problem.model = load_model("gpt2-355m");
  problem.machine = machine;
  problem.workload = {8, 2, 512, Precision::bf16, GradientWidth::automatic};
  return problem;
}

const RateEffect& effect_of(const Robustness& robustness, const std::string& rate) {
  const auto found = std::find_if(robustness.rates.begin(), robustness.rates.end(),
                                  [&](const RateEffect& one) { return one.rate == rate; });
  REQUIRE(found != robustness.rates.end());
  return *found;
}

TEST_CASE("a schedule keeps its tasks and follows the rates of another machine") {
  const Problem problem = problem_on(load_machine("rtx4090-12ssd"));
  const Evaluation here = evaluate(problem, "zero-infinity");
  REQUIRE(here.result);
  const SimulationResult again = simulate(here.schedule, problem.machine);
  CHECK(again.step_seconds == here.result->step_seconds);
  Machine slow = problem.machine;
  for (const std::string& rate : scalable_rates(slow)) {
    if (rate != "ssd.mixed") slow = with_scaled_rate(slow, rate, 0.5);
  }
  const SimulationResult slower = simulate(here.schedule, slow);
  CHECK(slower.tasks.size() == again.tasks.size());
  // All rates halved: twice the time, but for latencies, which stay.
  CHECK(slower.step_seconds > 1.8 * again.step_seconds);
  CHECK(slower.step_seconds <= 2 * again.step_seconds);
}

TEST_CASE("what a plan may lose: within the margin, the rate that matters most first") {
  const Problem problem = problem_on(load_machine("rtx4090-12ssd"));
  const std::optional<Robustness> found = robustness(problem, "zero-infinity");
  REQUIRE(found);
  const double step = found->step_seconds;
  // No step takes longer than with all of its work 1 / 0.8 as long.
  CHECK(found->all_slower_seconds <= step / (1 - rate_margin) * (1 + 1e-6));
  CHECK(found->random_seconds.back() <= step / (1 - rate_margin) * (1 + 1e-6));
  CHECK(found->worst_seconds() > 1.1 * step);
  CHECK(found->all_slower_seconds > 1.1 * step);
  CHECK(found->all_faster_seconds < step);
  REQUIRE(found->rates.size() == scalable_rates(problem.machine).size());
  for (std::size_t i = 1; i < found->rates.size(); ++i)
    CHECK(found->rates[i].slower_step_seconds <= found->rates[i - 1].slower_step_seconds);
  REQUIRE(found->random_seconds.size() == random_machines);
  CHECK(std::is_sorted(found->random_seconds.begin(), found->random_seconds.end()));
  CHECK(found->random_seconds.front() < found->random_seconds.back());
  CHECK_FALSE(found->measured_slow_seconds);  // a machine of data sheets
}

TEST_CASE("what the machine file assumes is tried, too, as simulate does") {
  Machine machine = load_machine("rtx4090-12ssd");
  const Problem problem = problem_on(machine);
  const Evaluation evaluation = evaluate(problem, "zero-infinity");
  const AssumptionEffects assumed = effects_of_assumptions(evaluation.schedule, *evaluation.result);
  REQUIRE(assumed.slowest_seconds > assumed.fastest_seconds);
  const Robustness found = robustness(evaluation.schedule, *evaluation.result);
  CHECK(found.assumed_slow_seconds == assumed.slowest_seconds);
  CHECK(found.assumed_fast_seconds == assumed.fastest_seconds);
  CHECK(found.worst_seconds() >= assumed.slowest_seconds);
}

TEST_CASE("of law mixed the gain is tried, too, and stays within what gains can be") {
  Machine machine = load_machine("rtx4090-12ssd", {"ssd.law=mixed", "ssd.mixed_gain=1.2"});
  machine.ssd.by_read_share = {{0.5, 1.9}};
  const Machine lower = with_scaled_rate(machine, "ssd.mixed", 0.8);
  CHECK(lower.ssd.mixed_gain == 1);
  CHECK(lower.ssd.by_read_share.at(0.5) == Approx(1.52));
  CHECK(lower.ssd.read == machine.ssd.read);
  CHECK(with_scaled_rate(machine, "ssd.mixed", 1.2).ssd.by_read_share.at(0.5) == 2);
  const std::optional<Robustness> found = robustness(problem_on(machine), "zero-infinity");
  REQUIRE(found);
  CHECK(effect_of(*found, "ssd.mixed").slower_step_seconds >= found->step_seconds);
}

TEST_CASE("the rate that sets the bound is the one that matters most") {
  Machine machine = load_machine("rtx4090-12ssd");
  machine.ssd.write /= 50;
  const std::optional<Robustness> drives = robustness(problem_on(machine), "zero-infinity");
  REQUIRE(drives);
  CHECK(drives->rates.front().rate == "ssd.write");
  machine = load_machine("rtx4090-12ssd");
  machine.gpu.flops /= 500;
  const std::optional<Robustness> gpu = robustness(problem_on(machine), "zero-infinity");
  REQUIRE(gpu);
  CHECK(gpu->rates.front().rate == "gpu");
  CHECK(effect_of(*gpu, "gpu").slower_step_seconds > 1.2 * gpu->step_seconds);
  CHECK(effect_of(*gpu, "dram").slower_step_seconds < 1.01 * gpu->step_seconds);
}

TEST_CASE("the same seed gives the same machines, another seed others") {
  const Problem problem = problem_on(load_machine("rtx4090-12ssd"));
  const auto draws = [&](std::uint64_t seed) {
    return robustness(problem, "greedysnake", seed)->random_seconds;
  };
  CHECK(draws(1) == draws(1));
  CHECK(draws(1) != draws(2));
}

TEST_CASE("samples in the machine file say how far the machine itself may be off") {
  Machine machine = load_machine("rtx4090-12ssd");
  // Copies whose slow samples take twice, and whose quick ones take half the median.
  KernelTime copies{"h2d", "bytes=1000", 0, 100, 1.5, {50, 50, 100, 200, 200}};
  KernelTime beside{"h2d", "bytes=9000,beside=d2h", 0, 900, 0, {900, 9000, 9000}};
  machine.kernels = {copies, beside};
  machine.pcie.h2d /= 50;  // so that they decide
  Problem problem = problem_on(machine);
  // Compute is timed by kernels once there are any; these have no shape of a layer.
  problem.machine.kernels.push_back({"forward", "other", 1e12, 6'000'000, 0, {}});
  const std::optional<Robustness> found = robustness(problem, "zero-infinity");
  REQUIRE(found);
  REQUIRE(found->measured_slow_seconds);
  CHECK(*found->measured_slow_seconds == Approx(2 * found->step_seconds).epsilon(0.1));
  CHECK(*found->measured_fast_seconds < 0.7 * found->step_seconds);
  CHECK(found->worst_seconds() == *found->measured_slow_seconds);
}

TEST_CASE("what does not fit has no robustness, and an unknown rate is refused") {
  Problem problem = problem_on(load_machine("rtx4090-12ssd"));
  problem.machine.gpu.memory = 1'000'000;
  CHECK_FALSE(robustness(problem, "zero-infinity"));
  CHECK_THROWS_AS(with_scaled_rate(problem.machine, "fan", 2), InputError);
}

}  // namespace
}  // namespace spillway
