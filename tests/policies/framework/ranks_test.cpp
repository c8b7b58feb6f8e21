// What a framework adds to the collectives of several ranks: calls, buckets, narrower gradients,
// and the time of the host between backward and the updates.
#include <catch2/catch.hpp>

#include <cmath>
#include <vector>

#include "policies/common/policy.hpp"
#include "policies/cost/costs.hpp"
#include "policies/framework/framework.hpp"
#include "policies/machine/rank_share.hpp"
#include "policies/model/units.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/races.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr int L = 6;

Problem two_nodes(int micro_batches, const std::string& framework) {
  Problem problem = with_rates(tiny_problem(L, micro_batches));
  problem.model = load_model("gpt2-124m", {"layers=6"});
  problem.machine.cluster.nodes = problem.machine.cluster.gpus = 2;
  problem.machine.cluster.nvlink = 200e9;
  problem.machine.cluster.nvlink_latency_ns = 3000;
  problem.machine.cluster.nic = 50e9;
  problem.machine.cluster.nic_latency_ns = 14000;
  problem.machine = rank_share(problem.machine, 2);
  problem.workload.ranks = 4;
  problem.workload.batch *= 4;
  problem.framework = framework;
  return problem;
}

std::vector<Task> collectives(const Schedule& schedule, Lane lane) {
  std::vector<Task> all;
  for (const Task& task : schedule.tasks()) {
    if (task.step == 1 && task.lane == lane) all.push_back(task);
  }
  return all;
}

std::uint64_t bytes_of(const std::vector<Task>& tasks) {
  std::uint64_t bytes = 0;
  for (const Task& task : tasks) bytes += task.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("Gradients are summed and sent in the framework's width, and take that much memory") {
  for (const int micro_batches : {1, 4}) {
    const auto built = [&](const char* framework) {
      return build_schedule(two_nodes(micro_batches, framework), "zero:stage=1", 3);
    };
    const Schedule own = built("spillway"), narrow = built("spillway:ranks.gradient_bytes=2");
    const std::uint64_t width = own.problem().gradient_bytes();
    REQUIRE(width == (micro_batches == 1 ? 2u : 4u));
    CHECK(bytes_of(collectives(narrow, Lane::ranks_reduce)) ==
          bytes_of(collectives(own, Lane::ranks_reduce)) / width * 2);
    const auto gradients = [](const Schedule& schedule) {
      std::uint64_t bytes = 0;
      for (const BufferInfo& one : schedule.buffers()) {
        if (one.kind == BufferKind::gradient || one.kind == BufferKind::head_gradient)
          bytes += one.bytes;
      }
      return bytes;
    };
    CHECK(
        static_cast<double>(gradients(narrow)) ==
        Approx(static_cast<double>(gradients(own)) / static_cast<double>(width) * 2).epsilon(0.01));
    CHECK(find_race(narrow) == "");
    CHECK(find_overlap(narrow) == "");
  }
}

TEST_CASE("A layer's parameters and gradients are moved in calls, each with its latency") {
  const Problem problem = two_nodes(2, "spillway:ranks.layer_calls=7");
  const Schedule schedule = build_schedule(problem, "zero", 3);
  const Costs costs(problem);
  int checked = 0;
  for (const Task& task : schedule.tasks()) {
    if (!is_collective(task.kind) || task.layer >= L) continue;
    // A ring through two nodes: 3 steps a call.
    CHECK(costs.of(task, schedule.groups()).latency_ns == 7 * 3 * 14000);
    Task whole = task;
    whole.available = 0;
    CHECK(costs.of(whole, schedule.groups()).latency_ns == 3 * 14000);
    ++checked;
  }
  CHECK(checked > 0);
}

TEST_CASE("Complete gradients, and updated parameters, go together up to a bucket") {
  const Problem own = two_nodes(2, "spillway");
  const auto layer = static_cast<std::uint64_t>(unit_elements(own.model, 0));
  // Two layers and a half: two go together.
  const std::string bucket = std::to_string(layer * 5 / 2);
  const Schedule one_by_one = build_schedule(own, "zero:stage=1", 3);
  const Schedule together = build_schedule(
      two_nodes(2, "spillway:ranks.reduce_bucket=" + bucket + ",ranks.spread_bucket=" + bucket),
      "zero:stage=1", 3);
  for (const Lane lane : {Lane::ranks_reduce, Lane::ranks_spread}) {
    const auto before = collectives(one_by_one, lane), after = collectives(together, lane);
    CHECK(bytes_of(after) == bytes_of(before));
    const std::uint64_t width = lane == Lane::ranks_reduce ? own.gradient_bytes() : 2;
    int pairs = 0;
    for (const Task& task : after) pairs += task.bytes == 2 * layer * width ? 1 : 0;
    CHECK(pairs == L / 2);
    CHECK(after.size() == before.size() - L / 2);
  }
  CHECK(find_race(together) == "");
}

TEST_CASE("The host works for a while between backward and the updates, once a step") {
  const Problem problem = two_nodes(2, "spillway:host.step=5ms");
  const Schedule schedule = build_schedule(problem, "amsp:optimizer_state=2x1", 3);
  const Costs costs(problem);
  int waits = 0;
  bool updates = false;
  for (const Task& task : schedule.tasks()) {
    if (task.step != 1) continue;
    updates = updates || task.kind == TaskKind::optimizer;
    if (task.kind != TaskKind::barrier || task.params == 0) continue;
    ++waits;
    CHECK_FALSE(updates);
    CHECK(costs.of(task).latency_ns == 5'000'000 + problem.machine.host.sync_ns);
    CHECK(task.waits_for() == LaneSet{Lane::gpu_compute, Lane::ranks_reduce, Lane::ranks_spread});
    CHECK(task.holds() == LaneSet{Lane::gpu_compute});
  }
  CHECK(waits == 1);
}

TEST_CASE("What is wrong with a framework's keys of ranks is said") {
  const auto rejects = [](const std::string& key, const std::string& what) {
    check_error([&] { load_framework("spillway:" + key); }, what, "");
  };
  rejects("ranks.gradient_bytes=3",
          "ranks.gradient_bytes=3: ranks.gradient_bytes: it is not 0, 2 or 4");
  rejects("ranks.layer_calls=1001",
          "ranks.layer_calls=1001: ranks.layer_calls: it is more than 1000");
  rejects("ranks.reduce_bucket=-1",
          "ranks.reduce_bucket=-1: ranks.reduce_bucket: \"-1\" is not a whole");
  rejects("host.step=2000s", "host.step=2000s: host.step: it is more than 1000 s");
}
