#include "exec/store/store_layout.hpp"

#include <catch2/catch.hpp>

#include "policies/workload/durability.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

TEST_CASE("the store is as large as predictions say, to the byte, under every policy") {
  for (const auto& [policy, moments] : every_policy_with_every_moments()) {
    for (const int layers : {1, 3}) {
      for (const Precision precision : {Precision::bf16, Precision::fp32}) {
        INFO(policy << ", " << layers << " layers, moments " << to_string(moments));
        Problem problem = tiny_problem(layers, 1, precision);
        problem.workload.moments = moments;
        const Schedule schedule = build_schedule(problem, policy, 4);
        const Schedule remainder = build_schedule(problem, schedule.policy(), 3);
        const std::vector<const Schedule*> both = {&schedule, &remainder};
        for (const bool durable : {false, true}) {
          const StoreLayout layout(both, durable);
          const StoreBytes predicted = store_bytes(both, durable);
          CHECK(layout.bytes() == predicted.address_space());
          CHECK(layout.captured_bytes() == predicted.memory_copies);
        }
      }
    }
  }
}
