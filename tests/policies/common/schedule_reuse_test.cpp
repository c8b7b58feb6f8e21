// A schedule is built again only where something that it follows from has changed.
#include "policies/common/schedule_reuse.hpp"

#include <catch2/catch.hpp>

#include "policies/common/policy.hpp"

namespace spillway {
namespace {

Problem problem_on(const std::vector<std::string>& overrides) {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-12ssd", overrides);
  problem.workload.batch = 8;
  problem.workload.micro_batch = 4;
  return problem;
}

// Tasks are kept in one place by all copies of a schedule.
bool is_same_schedule(const Schedule& one, const Schedule& other) {
  return one.tasks().data() == other.tasks().data();
}

TEST_CASE("a schedule does not depend on rates that its policy does not look at") {
  ScheduleReuse reuse;
  const Schedule slow =
      reuse.build(problem_on({"gpu.flops=80TFLOPS", "pcie.h2d=12GB/s"}), "greedysnake", 3);
  const Problem fast = problem_on({"gpu.flops=320TFLOPS", "pcie.h2d=52GB/s"});
  const Schedule same = reuse.build(fast, "greedysnake", 3);
  CHECK(is_same_schedule(slow, same));
  CHECK(same.problem().machine.gpu.flops == 320e12);
  CHECK(slow.problem().machine.gpu.flops == 80e12);
  const Schedule anew = build_schedule(fast, "greedysnake", 3);
  CHECK(same.fingerprint() == anew.fingerprint());
  CHECK(same.tasks_emitted() == anew.tasks_emitted());
}

TEST_CASE("a schedule is built anew for another size, policy or number of steps") {
  const Problem problem = problem_on({});
  const auto is_reused = [&](const Problem& other, const std::string& policy, int steps) {
    ScheduleReuse reuse;
    const Schedule before = reuse.build(problem, "greedysnake", 2);
    const Schedule after = reuse.build(other, policy, steps);
    CHECK(after.fingerprint() == build_schedule(other, policy, steps).fingerprint());
    return is_same_schedule(before, after);
  };
  CHECK(is_reused(problem, "greedysnake", 2));
  CHECK_FALSE(is_reused(problem, "greedysnake", 1));
  CHECK_FALSE(is_reused(problem, "greedysnake:alpha=0.5", 2));
  CHECK_FALSE(is_reused(problem_on({"host.memory=128GB"}), "greedysnake", 2));
  Problem other = problem;
  other.workload.batch = 16;
  CHECK_FALSE(is_reused(other, "greedysnake", 2));
  other = problem;
  other.model.layers = 20;
  CHECK_FALSE(is_reused(other, "greedysnake", 2));
}

TEST_CASE("drives with room to spare change no schedule, and those without do") {
  const std::string policy = "greedysnake:optimizer_ssd=1,parameters_ssd=1";
  ScheduleReuse reuse;
  const auto check = [&](const std::string& capacity) {
    const Problem problem = problem_on({"ssd.capacity=" + capacity});
    const Schedule schedule = reuse.build(problem, policy, 3);
    const Schedule anew = build_schedule(problem, policy, 3);
    CHECK(schedule.fingerprint() == anew.fingerprint());
    CHECK(schedule.fits() == anew.fits());
    for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
      CHECK(schedule.use(tier).peak_bytes == anew.use(tier).peak_bytes);
      CHECK(schedule.use(tier).capacity_bytes == anew.use(tier).capacity_bytes);
    }
    return schedule;
  };
  const Schedule large = check("20TB"), larger = check("40TB"), small = check("100GB");
  CHECK(large.fits());
  CHECK(is_same_schedule(large, larger));
  CHECK_FALSE(small.fits());
  CHECK_FALSE(is_same_schedule(large, small));
  // What was built before is still there.
  CHECK(is_same_schedule(large, check("30TB")));
}

TEST_CASE("a schedule whose plan follows from rates is built anew for others") {
  const std::string policy = "fuyou:swap=auto";
  ScheduleReuse reuse;
  for (const char* flops : {"gpu.flops=20TFLOPS", "gpu.flops=320TFLOPS", "gpu.flops=321TFLOPS"}) {
    for (const char* drives : {"ssd.count=1", "ssd.count=12"}) {
      const Problem problem = problem_on({flops, drives, "ssd.capacity=20TB"});
      const Schedule schedule = reuse.build(problem, policy, 2);
      CHECK(schedule.fingerprint() == build_schedule(problem, policy, 2).fingerprint());
    }
  }
}

TEST_CASE("a schedule of ranks is built anew for another cluster, and for another rank") {
  const auto problem_of = [](const std::string& gpus, int rank) {
    Problem problem;
    problem.model = load_model("gpt2-1.5b");
    problem.machine = load_machine("a800-cluster", {"cluster.gpus=" + gpus});
    problem.workload.ranks = 8;
    problem.workload.batch = 8;
    problem.workload.micro_batch = 1;
    problem.rank = rank;
    return problem;
  };
  const std::string policy = "mics:group=2x1";
  ScheduleReuse reuse;
  for (const auto& [gpus, rank] : {std::pair{"8", 0}, {"4", 0}, {"4", 1}, {"8", 1}, {"8", 0}}) {
    Problem problem = problem_of(gpus, rank);
    // The same memories, whatever the share of a rank.
    problem.machine.host.memory = 100'000'000'000;
    problem.machine.ssd.capacity = 0;
    CHECK(reuse.build(problem, policy, 2).fingerprint() ==
          build_schedule(problem, policy, 2).fingerprint());
  }
}

TEST_CASE("miniatures are found and built anew only where they would be others") {
  const auto problem_of = [](std::vector<std::string> overrides) {
    Problem problem = problem_on(overrides);
    problem.model = load_model("gpt-65b");
    return problem;
  };
  const auto check = [](ScheduleReuse& reuse, const Problem& problem, const std::string& policy) {
    const std::optional<Miniatures> found = reuse.miniatures(problem, policy, 3);
    const std::optional<Miniatures> anew = find_miniatures(problem, parse_policy(policy), 3);
    REQUIRE(found.has_value() == anew.has_value());
    if (!found) return std::optional<Schedule>();
    CHECK(found->policy.options == anew->policy.options);
    CHECK(found->period == anew->period);
    CHECK(found->per_layer == anew->per_layer);
    CHECK(found->live == anew->live);
    const std::int64_t layers =
        miniature_layers(problem.model.layers, found->period, 6 + 2 * found->period);
    Schedule small = reuse.miniature(problem, layers);
    CHECK(small.fingerprint() == build_miniature(problem, *anew, layers, 3).fingerprint());
    CHECK(small.problem().model.layers == layers);
    CHECK(small.problem().machine.gpu.flops == problem.machine.gpu.flops);
    return std::optional(std::move(small));
  };
  ScheduleReuse reuse;
  const auto slow = check(reuse, problem_of({"gpu.flops=80TFLOPS"}), "greedysnake");
  const auto fast = check(reuse, problem_of({"gpu.flops=320TFLOPS"}), "greedysnake");
  const auto less = check(reuse, problem_of({"host.memory=256GB"}), "greedysnake");
  const auto delayed = check(reuse, problem_of({"host.memory=256GB"}), "greedysnake:alpha=0.5");
  REQUIRE((slow && fast && less && delayed));
  CHECK(is_same_schedule(*slow, *fast));
  CHECK_FALSE(is_same_schedule(*fast, *less));
  CHECK_FALSE(is_same_schedule(*less, *delayed));
  // What follows from rates, and what miniatures do not tell.
  for (const char* policy : {"fuyou:swap=auto", "fuyou", "zero-infinity", "greedysnake"}) {
    for (const char* flops : {"gpu.flops=20TFLOPS", "gpu.flops=320TFLOPS"}) {
      for (const char* drives : {"ssd.count=1", "ssd.count=12"})
        check(reuse, problem_of({flops, drives, "ssd.capacity=20TB"}), policy);
    }
  }
}

}  // namespace
}  // namespace spillway
