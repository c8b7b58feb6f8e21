// The interval between commits: Young's formula, the wear of the drives, and what is assumed of
// machines that nobody has described.
#include "policies/cost/commit_interval.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

TEST_CASE("where commits copy no state the default is every step, whatever a step takes") {
  const Problem problem = tiny_problem(3, 1);
  const Schedule schedule = build_schedule(problem, "zero-infinity", 2);
  const StoreBytes bytes = store_bytes(schedule, true);
  REQUIRE(bytes.captured() == 0);
  for (const double seconds : {0.0, 1e-6, 1.0, 1e6})
    CHECK(commit_interval(bytes, problem, seconds).steps == 1);
}

TEST_CASE("the default interval is Young's, or what the drives' life allows") {
  Problem problem = tiny_problem(3, 1);
  problem.machine.ssd.count = 2;
  problem.machine.ssd.write = 4e9;
  problem.machine.ssd.capacity = 8'000'000'000'000;
  StoreBytes bytes;
  bytes.memory_copies = 2 * std::uint64_t{100'000'000'000};
  // cost = 100 GB / 4 GB/s = 25 s; sqrt(2 x 25 s x 86400 s) = 2078.46 s
  // wear: 600 x 8 TB = 4.8 PB in 3 years = 50.7 MB/s; 100 GB at that rate: 1972 s
  CommitInterval interval = commit_interval(bytes, problem, 10);
  CHECK(interval.cost_seconds == 25);
  CHECK(interval.steps == static_cast<std::int64_t>(std::ceil(std::sqrt(2 * 25.0 * 86'400) / 10)));
  CHECK(interval.seconds == static_cast<double>(interval.steps) * 10);
  // Drives rated for 1 PB each: 2 PB in 3 years = 21.1 MB/s, so 4734 s.
  problem.machine.ssd.tbw = 1'000'000'000'000'000;
  interval = commit_interval(bytes, problem, 10);
  const double wear_seconds = 1e11 / (2e15 / (3 * 365.25 * 86'400));
  CHECK(interval.steps == static_cast<std::int64_t>(std::ceil(wear_seconds / 10)));
  // A step longer than that is committed each time.
  CHECK(commit_interval(bytes, problem, 1e5).steps == 1);
}

TEST_CASE("without a predicted step or a described drive the interval rests on the assumptions") {
  Problem problem = tiny_problem(3, 1);  // no rates at all: as `train` without a machine file
  problem.machine.ssd.count = 1;
  problem.machine.gpu.is_cpu = true;
  StoreBytes bytes;
  bytes.memory_copies = 2 * std::uint64_t{1'000'000'000};
  const double step = 3 * problem.model.forward_flops(2, 16) / 1e10;
  // cost = 1 GB at 1 GB/s; sqrt(2 x 1 s x 86400 s) = 415.7 s; wear: 1 GB at 600 TB in 3 years, 158
  // s
  const double expected = std::ceil(std::sqrt(2 * 86'400.0) / step);
  CHECK(commit_interval(bytes, problem, 0).steps == static_cast<std::int64_t>(expected));
  // What is free on a drive nobody has described changes nothing.
  problem.machine.ssd.capacity = 12345;
  CHECK(commit_interval(bytes, problem, 0).steps == static_cast<std::int64_t>(expected));
  // The rate of a GPU that is described counts.
  problem.machine.gpu.flops = 2e11;
  CHECK(commit_interval(bytes, problem, 0).steps ==
        static_cast<std::int64_t>(std::ceil(std::sqrt(2 * 86'400.0) / (step / 20))));
}
