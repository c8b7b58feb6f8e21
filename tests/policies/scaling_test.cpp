// The work of building a schedule grows with its tasks: counted, not timed.
#include <catch2/catch.hpp>

#include "policies/policy.hpp"
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
    CHECK(operations_per_task(twice) < 1.25 * operations_per_task(once));
  }
}

TEST_CASE("Twice the steps or layers take no more operations per task") {
  for (const std::string& policy : policy_settings()) {
    INFO(policy);
    const double once = operations_per_task(build_schedule(tiny_problem(12, 4), policy, 8));
    CHECK(operations_per_task(build_schedule(tiny_problem(12, 4), policy, 16)) < 1.25 * once);
    CHECK(operations_per_task(build_schedule(tiny_problem(24, 4), policy, 8)) < 1.25 * once);
  }
}
