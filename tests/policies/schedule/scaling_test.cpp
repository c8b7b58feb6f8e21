// The work of building a schedule grows with its tasks: counted, not timed.
#include <catch2/catch.hpp>

#include "policies/common/policy.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

double operations_per_task(const Schedule& schedule) {
  return static_cast<double>(schedule.build_operations()) /
         static_cast<double>(schedule.tasks().size());
}

}  // namespace

TEST_CASE("Twice the micro-batches take no more operations per task") {
  for (const std::string& policy : policy_settings()) {
    const Schedule once = build_schedule(tiny_problem(7, 64), policy, 3);
    const Schedule twice = build_schedule(tiny_problem(7, 128), policy, 3);
    INFO(policy << ": " << once.tasks().size() << " and " << twice.tasks().size() << " tasks");
    // A third more where the longer one is laid out once more.
    CHECK(operations_per_task(twice) < 1.5 * operations_per_task(once));
  }
}

TEST_CASE("Twice the steps or layers take no more operations per task") {
  for (const std::string& policy : policy_settings()) {
    INFO(policy);
    const double once = operations_per_task(build_schedule(tiny_problem(12, 4), policy, 8));
    CHECK(operations_per_task(build_schedule(tiny_problem(12, 4), policy, 16)) < 1.25 * once);
    CHECK(operations_per_task(build_schedule(tiny_problem(24, 4), policy, 8)) < 1.3 * once);
  }
}

TEST_CASE("A deep model takes every policy as many tasks more as it has layers more", "[slow]") {
  // What grows with the square of the layers takes minutes here.
  for (const std::string policy : {"zero-infinity", "zero-infinity:parameters=host", "fuyou",
                                   "fuyou:group=1e15", "zero-offload", "deep-optimizer-states",
                                   "deep-optimizer-states:stride=2", "greedysnake", "resident"}) {
    INFO(policy);
    Problem problem = tiny_problem(5'000, 1);
    CHECK(build_schedule(problem, policy, 1).tasks().size() > 10'000);
  }
}

TEST_CASE("What a policy's options cut too small is refused") {
  Problem problem = tiny_problem(4, 1);
  problem.model.hidden = 65'536;
  problem.model.ffn = 4 * problem.model.hidden;
  CHECK_THROWS_WITH(build_schedule(problem, "fuyou:group=2048", 1),
                    Catch::Contains("groups of 2048 elements are too many"));
}
