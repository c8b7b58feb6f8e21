// The policy that makes any legal choice: legal it must be, for its runs to say something.
#include "tests/policies/random_policy.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <random>

#include "tests/policies/check_schedule.hpp"
#include "tests/policies/drive_sets.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Problem problem_of(std::mt19937_64& random) {
  const auto between = [&](std::uint64_t low, std::uint64_t high) {
    return static_cast<int>(low + random() % (high - low + 1));
  };
  Problem problem =
      tiny_problem(between(1, 5), between(1, 6), random() % 2 ? Precision::bf16 : Precision::fp32);
  problem.workload.gradient = random() % 2 ? GradientWidth::bits32 : GradientWidth::automatic;
  problem.workload.moments = random() % 2 ? MomentWidth::bf16 : MomentWidth::fp32;
  const GradientClip clips[] = {{}, {ClipScope::global, 1}, {ClipScope::layer, 1}};
  problem.workload.clip = clips[random() % 3];
  if (random() % 4 == 0) problem.workload.on_nonfinite = OnNonFinite::skip;
  if (random() % 2 == 0) make_llama(problem.model, random());
  freeze_some(problem.model, random());
  give_drive_sets(problem.machine, between(1, most_drive_sets), random());
  return problem;
}

// SPILLWAY_TEST_SEEDS: how many; SPILLWAY_TEST_SEED: the first one, to repeat a failure.
std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST_CASE("Any legal choice: no race, every task reads what it must, each state written once") {
  const std::uint64_t first = from_environment("SPILLWAY_TEST_SEED", std::random_device{}());
  const std::uint64_t seeds = from_environment("SPILLWAY_TEST_SEEDS", 600);
  INFO("first seed " << first);
  std::map<TaskKind, std::size_t> kinds;
  std::size_t late_updates = 0, partly_saved = 0, on_gpu = 0, to_ssd = 0, to_more_drives = 0;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = problem_of(random);
    INFO("seed " << seed << ", " << problem.model.layers << " layers, "
                 << problem.workload.micro_batches() << " micro-batches");
    const auto policy = make_random_policy({seed, random() % 2 == 0});
    const Schedule schedule = build_schedule(problem, *policy, 3);
    REQUIRE(find_home_error(schedule) == "");
    REQUIRE(find_overlap(schedule) == "");
    REQUIRE(find_race(schedule) == "");
    REQUIRE(find_dataflow_error(schedule) == "");
    REQUIRE(find_state_write_error(schedule) == "");
    REQUIRE(find_vain_write(schedule) == "");
    for (const Tier tier : memories_of(problem.machine))
      REQUIRE(schedule.use(tier).peak_bytes >= schedule.use(tier).live_peak_bytes);
    for (const Task& task : schedule.tasks()) {
      ++kinds[task.kind];
      late_updates += task.kind == TaskKind::optimizer && task.update < task.step;
      on_gpu += task.kind == TaskKind::optimizer && task.lane == Lane::gpu_compute;
      to_ssd += task.kind == TaskKind::write;
      to_more_drives += task.kind == TaskKind::write && task.lane != Lane::ssd_write;
      partly_saved += task.kind == TaskKind::backward && task.available != saved_none &&
                      task.available != saved_all(problem.model);
    }
  }
  if (seeds < 600) return;
  // The choices did happen.
  CHECK(kinds.size() == task_kind_count_of_one_rank);
  CHECK(late_updates > 1000);
  CHECK(on_gpu > 1000);
  CHECK(to_ssd > 10000);
  CHECK(to_more_drives > 5000);
  CHECK(partly_saved > 1000);
}

TEST_CASE("One seed makes one schedule, another seed another one") {
  const Problem problem = tiny_problem(3, 3);
  const auto fingerprint = [&](std::uint64_t seed) {
    return build_schedule(problem, *make_random_policy({seed, true}), 2).fingerprint();
  };
  CHECK(fingerprint(5) == fingerprint(5));
  CHECK(fingerprint(5) != fingerprint(6));
}

TEST_CASE(
    "Every policy writes each part of the optimizer state home once per step, in step order") {
  for (const std::string& policy : policy_settings()) {
    for (const int micro_batches : {1, 3}) {
      INFO(policy << ", " << micro_batches << " micro-batches");
      CHECK(find_state_write_error(build_schedule(tiny_problem(3, micro_batches), policy, 3)) ==
            "");
    }
  }
}
