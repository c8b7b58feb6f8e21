// The interval around a predicted step, worked out by hand from the spreads of a machine file.
#include "sim/step_interval.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// Four reads in a row, and a machine whose reads spread so much, by themselves and in common.
StepUncertainty of_four_reads(double one, double common, std::size_t samples) {
  Problem problem = small_problem(round_machine());
  KernelTime kernel{"read", "bytes=1", 0, 100, 1.6832 * one, {}};
  kernel.samples_ns.assign(samples, 100);
  KernelTime beside{"read", "bytes=1,beside=write", 0, 100, 10, {}};
  problem.machine.kernels = {kernel, beside};
  problem.machine.references = {{"read", "s", 0, 100, 1.6832 * common, {}},
                                {"compute", "s", 0, 100, 0.5, {}}};
  Tasks tasks(problem);
  for (int i = 0; i < 4; ++i) tasks.read(7 * gigabyte);
  const Schedule schedule = tasks.finish();
  const auto uncertainty = step_uncertainty(schedule, simulate(schedule), problem.machine);
  REQUIRE(uncertainty);
  return *uncertainty;
}

}  // namespace

TEST_CASE("What is common to a run does not average out, what is independent by task does") {
  const StepUncertainty common = of_four_reads(0, 0.1, 11);
  CHECK(common.common() == Approx(0.1));  // of compute there is nothing on the chain
  CHECK(common.independent == 0);
  CHECK(common.calibration == 0);
  const StepUncertainty independent = of_four_reads(0.1, 0, 16);
  CHECK(independent.common() == 0);
  CHECK(independent.independent == Approx(0.1 / 2).epsilon(1e-3));
  CHECK(independent.calibration == Approx(1.2533 * 0.1 / 4));
}

TEST_CASE(
    "The interval holds the step, is wider the more is uncertain, and is the same each time") {
  const StepUncertainty one = of_four_reads(0.1, 0.03, 10), two = of_four_reads(0.1, 0.06, 10);
  CHECK(one.all() == Approx(std::hypot(one.common(), one.calibration, one.independent)));
  CHECK(one.low(2.0) < 2.0);
  CHECK(one.high(2.0) > 2.0);
  CHECK(one.low(2.0) * one.high(2.0) == Approx(4.0));
  CHECK(two.high(2.0) > one.high(2.0));
  CHECK(of_four_reads(0.1, 0.03, 10).high(2.0) == one.high(2.0));
}

TEST_CASE(
    "What references tell of a run's machine is not uncertain any more, but for their error") {
  const StepUncertainty one = of_four_reads(0.1, 0.03, 10);
  const StepUncertainty corrected = one.corrected({{"read", 9}});
  CHECK(corrected.common() == Approx(one.common() / 3));
  CHECK(corrected.calibration == one.calibration);
  CHECK(corrected.high(2.0) < one.high(2.0));
  // References of other kinds say nothing of it.
  CHECK(one.corrected({{"compute", 9}}).common() == one.common());
  // Trials were predicted by references, too.
  StepUncertainty tried = one;
  tried.trials = 1;
  CHECK(tried.corrected({{"read", 9}}).common() == 0);
  CHECK(tried.corrected({{"compute", 9}}).common() == tried.common());
}

TEST_CASE("Trials that were off by more than spreads of kernels explain are what counts of both") {
  Problem problem = small_problem(round_machine());
  problem.machine.references = {{"read", "s", 0, 100, 1.6832 * 0.01, {}}};
  Tasks tasks(problem);
  tasks.read(7 * gigabyte);
  const Schedule schedule = tasks.finish();
  const SimulationResult result = simulate(schedule);
  Machine machine = problem.machine;
  const auto deviation = [&](const std::vector<double>& errors) {
    machine.trials.clear();
    for (const double error : errors)
      machine.trials.push_back(
          {"fuyou", 2, 1, std::llround(1e9 * std::exp(error)), 1'000'000'000, 0, {}});
    return std::log(step_uncertainty(schedule, result, machine)->high(1)) / 1.6449;
  };
  CHECK(deviation({}) == Approx(0.01));
  // 95 % quantiles of Student's t with 1, 2 and 6 degrees of freedom, from tables.
  constexpr double one = 6.3138 / 1.6449, two = 2.9200 / 1.6449, six = 1.9432 / 1.6449;
  CHECK(deviation({0.005, -0.005}) == Approx(std::hypot(0.01, two * 0.005)).epsilon(1e-4));
  CHECK(deviation({0.02}) == Approx(std::hypot(0.01, one * 0.02)).epsilon(1e-4));
  CHECK(deviation({-0.03, 0.01}) ==
        Approx(std::hypot(0.01, two * std::sqrt(0.0005))).epsilon(1e-4));
  CHECK(deviation({-0.02, 0.02, -0.02, 0.02, -0.02, 0.02}) ==
        Approx(std::hypot(0.01, six * 0.02)).epsilon(1e-4));
  machine.kernels = {{"read", "bytes=1", 0, 100, 1.6832 * 0.03, {100, 100, 100, 100}}};
  CHECK(deviation({0.02, -0.02, 0.02, -0.02, 0.02, -0.02}) ==
        Approx(std::hypot(0.01, 0.03, 1.2533 * 0.03 / 2)));
}

TEST_CASE("A machine file without references has no interval") {
  Tasks tasks(small_problem(round_machine()));
  tasks.read(7 * gigabyte);
  const Schedule schedule = tasks.finish();
  CHECK_FALSE(step_uncertainty(schedule, simulate(schedule), schedule.problem().machine));
}
