// Gradients in groups of micro-batches, on one rank: what is summed by itself, and what is refused.
#include <catch2/catch.hpp>

#include "tests/policies/check_schedule.hpp"
#include "tests/policies/dataflow.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/schedules.hpp"

namespace spillway {
namespace {

std::int64_t additions(const Schedule& schedule) {
  std::int64_t count = 0;
  for (const Task& task : schedule.tasks()) count += task.kind == TaskKind::gradient_add ? 1 : 0;
  return count;
}

Problem in_groups(int micro_batches, int groups) {
  Problem problem = test::tiny_problem(3, micro_batches);
  problem.workload.gradient_groups = groups;
  return problem;
}

TEST_CASE("gradient groups: each after the first is added once to the sum of those before it") {
  for (const int groups : {2, 3, 6}) {
    const Schedule schedule = build_schedule(in_groups(6, groups), "resident", 2);
    CHECK(test::find_dataflow_error(schedule) == "");
    // Three layers, and the embedding with its two sums.
    CHECK(additions(schedule) == 2 * (groups - 1) * (3 + 2));
  }
  CHECK(additions(build_schedule(in_groups(6, 1), "resident", 2)) == 0);
}

TEST_CASE("gradient groups: sums of one micro-batch each are as wide as sums of several") {
  CHECK(in_groups(1, 1).gradient_bytes() == 2);
  CHECK(in_groups(2, 2).gradient_bytes() == 4);
}

TEST_CASE("gradient groups: sums by the meshes of ranks have every micro-batch once") {
  const std::pair<GradientMeshes, int> cases[] = {
      // Meshes of four ranks with three micro-batches each, and additions of layers: of
      // micro-batches
      // one by one, or of the sums of ranks.
      {{2, 1, 1}, 3}, {{0, 4, 4}, 11}, {{0, 2, 2}, 11},       {{2, 2, 2}, 11},
      {{0, 1, 2}, 3}, {{0, 4, 2}, 11}, {{0, 2, 1, true}, 11}, {{1, 1, 1, true}, 3},
  };
  for (const auto& [meshes, additions_of_layer] : cases) {
    Problem problem = in_groups(12, 4);
    problem.workload.group_meshes = meshes;
    problem.validate();
    const Schedule schedule = build_schedule(problem, "resident", 2);
    CHECK(test::find_dataflow_error(schedule) == "");
    // In both steps three layers, and the embedding with its two sums.
    CHECK(additions(schedule) == 2 * (3 * additions_of_layer + 2 * 3));
  }
}

TEST_CASE("gradient groups: meshes are compared by what they sum and which shards they make") {
  const auto same = [](const GradientMeshes& a, const GradientMeshes& b,
                       std::int64_t micro_batches) {
    return canonical(a, 4, micro_batches) == canonical(b, 4, micro_batches);
  };
  CHECK(same({}, {4, 1, 1}, 2));
  CHECK(same({}, {4, 1, 4, true}, 2));
  CHECK(same({0, 4, 4}, {0, 4, 1}, 2));
  CHECK(same({0, 4, 4}, {}, 1));
  CHECK(same({2, 2, 2}, {2, 1, 1}, 1));
  CHECK_FALSE(same({0, 4, 4}, {}, 2));
  CHECK_FALSE(same({0, 2, 2}, {}, 1));
  CHECK_FALSE(same({2, 1, 1}, {2, 1, 1, true}, 1));
  CHECK_FALSE(same({2, 2, 2, true}, {2, 1, 1, true}, 1));
  CHECK_FALSE(same({0, 4, 2}, {0, 4, 1}, 2));
}

TEST_CASE("gradient groups: meshes that ranks cannot have are refused") {
  const auto refused = [](const GradientMeshes& meshes, const char* text) {
    Problem problem = in_groups(12, 4);
    problem.workload.group_meshes = meshes;
    check_error([&] { problem.validate(); }, std::string("gradient_meshes: ") + text,
                "gradient_groups");
  };
  refused({3, 1, 1}, "3 shards of optimizer state do not divide 4 groups");
  refused({2, 4, 1}, "4 shards of gradients do not divide 2 of optimizer state");
  refused({0, 2, 4}, "4 shards of parameters do not divide 2 of gradients");
  Problem none = in_groups(12, 1);
  none.workload.group_meshes.at_once = true;
  check_error([&] { none.validate(); }, "gradient_meshes: gradients are not summed in groups",
              "gradient_groups");
  Problem ranks = in_groups(12, 2);
  ranks.workload.ranks = 2;
  ranks.machine.cluster.gpus = 2;
  ranks.workload.group_meshes.gradients = 2;
  check_error([&] { ranks.validate(); },
              "gradient_meshes: several ranks have those of their policy", "leave");
}

TEST_CASE("gradient groups: they are equal, and summed on the GPU in order") {
  check_error([] { in_groups(6, 4).validate(); }, "6 micro-batches are not 4 groups",
              "gradient_groups = 3 or gradient_groups = 6");
  for (const char* policy : {"greedysnake", "zero-infinity:gradients=host"}) {
    INFO(policy);
    check_error([&] { build_schedule(in_groups(6, 2), policy, 2); }, "gradients in 2 groups",
                "resident");
  }
  Problem ranks = in_groups(6, 3);
  ranks.workload.ranks = 2;
  ranks.machine.cluster.gpus = 2;
  check_error([&] { ranks.validate(); }, "2 ranks sum gradients in 2 groups", "leave");
}

}  // namespace
}  // namespace spillway
