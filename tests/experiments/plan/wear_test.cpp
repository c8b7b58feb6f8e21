#include "experiments/plan/wear.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "policies/common/policy.hpp"

namespace spillway {
namespace {

Problem small(const char* policy_machine) {
  Problem problem;
  problem.model = load_model("gpt-small");
  problem.machine = load_machine(policy_machine);
  problem.workload = {8, 8, 256, Precision::bf16, GradientWidth::automatic};
  return problem;
}

TEST_CASE("bytes a day count commits where no step writes anything") {
  // resident writes nothing in a step; a commit copies 12 bytes of state per parameter.
  const Schedule schedule = build_schedule(small("a100-80gb"), "resident", 4);
  const SimulationResult result = simulate(schedule);
  REQUIRE(result.ssd_bytes_written_per_step == 0);
  const Wear wear = wear_of(schedule, &result, {{DurabilityMode::on, 10}, 95});
  const auto commit = static_cast<double>(wear.store.captured() + wear.store.records / 2);
  CHECK(wear.store.captured() >=
        12 * static_cast<std::uint64_t>(schedule.problem().model.parameters()));
  CHECK(wear.bytes_per_step() == Approx(commit / 10));
  CHECK(*wear.bytes_per_day() == Approx(commit / 10 * 86'400 / result.step_seconds));
  // Steps 10, 20 .. 90 and the last, 95; and the record of what training starts with.
  CHECK(*wear.run_bytes() == Approx(10 * commit + static_cast<double>(wear.store.records) / 2));
  // Every fourth step is committed, too: of 20 steps 2 and 5, of which the last is one.
  Wear kept = wear;
  kept.also_every = 4;
  CHECK(kept.bytes_per_step() == Approx(commit * 6 / 20));
  const Wear off = wear_of(schedule, &result, {{DurabilityMode::off, 0}, 95});
  CHECK(off.bytes_per_step() == 0);
  CHECK(*off.run_bytes() == 0);
  CHECK(off.commit_every == 0);
}

TEST_CASE("commits come after every multiple of the interval, and after the last step") {
  CHECK(commits_in(0, 5, 2) == 3);   // 2, 4, 5
  CHECK(commits_in(5, 2, 2) == 2);   // 6, 7
  CHECK(commits_in(7, 1, 10) == 1);  // 8
  CHECK(commits_in(0, 20, 10) == 2);
  CHECK(commits_in(3, 0, 2) == 0);
  CHECK(commits_in(0, 7, 0) == 0);
  // Beside these, every so many steps that are kept.
  CHECK(commits_in(0, 12, 4, 3) == 6);   // 3, 4, 6, 8, 9, 12
  CHECK(commits_in(0, 13, 4, 3) == 7);   // and the last
  CHECK(commits_in(4, 4, 100, 3) == 2);  // 6, 8
  CHECK(commits_in(0, 12, 4, 8) == 3);   // 8 is one of both
  CHECK(commits_in(0, 9, 100, 3) == 3);  // 9 is the last, too
  CHECK(commits_in(0, 7, 0, 3) == 0);    // without durability nothing is committed
}

TEST_CASE("a run writes its first state, its steps and its commits") {
  const Schedule schedule = build_schedule(small("a100-80gb"), "zero-infinity", 4);
  const SimulationResult result = simulate(schedule);
  const Wear wear = wear_of(schedule, &result, {{DurabilityMode::on, 0}, 1000});
  CHECK(wear.commit_every == 1);
  const double expected = static_cast<double>(wear.store.first_fill) +
                          1000 * result.ssd_bytes_written_per_step +
                          1001 * static_cast<double>(wear.store.records) / 2;
  CHECK(*wear.run_bytes() == Approx(expected));
  // State (12 bytes a parameter) rests on the drives, and parameters (2) but those of the
  // embedding.
  CHECK(wear.store.first_fill >=
        12 * static_cast<std::uint64_t>(schedule.problem().model.parameters()));
}

TEST_CASE("the rating of one drive times the drives gives their life and the share a run takes") {
  Problem problem = small("a100-80gb");  // 4 drives
  problem.machine.ssd.tbw = 1'000'000'000'000'000;
  const Schedule schedule = build_schedule(problem, "zero-infinity", 4);
  const SimulationResult result = simulate(schedule);
  const Wear wear = wear_of(schedule, &result, {{DurabilityMode::on, 0}, 1000});
  CHECK(wear.rated_bytes == 4e15);
  CHECK(*wear.drive_years() ==
        Approx(4e15 / (wear.bytes_per_step() / result.step_seconds) / (365.25 * 86'400)));
  CHECK(*wear.share_of_rating() == Approx(*wear.run_bytes() / 4e15));
  problem.machine.ssd.tbw = 0;
  const Wear unknown = wear_of(build_schedule(problem, "zero-infinity", 4), &result, WholeRun{});
  CHECK_FALSE(unknown.drive_years());
  CHECK_FALSE(unknown.share_of_rating());
  CHECK_FALSE(unknown.run_bytes());
}

TEST_CASE("the JSON of a plan counts the whole store and all writes") {
  const Schedule schedule = build_schedule(small("a100-80gb"), "greedysnake", 4);
  const SimulationResult result = simulate(schedule);
  const Wear wear = wear_of(schedule, &result, {{DurabilityMode::on, 50}, {}});
  nlohmann::ordered_json json = {{"memory", {{"ssd", {{"peak_bytes", 0}}}}},
                                 {"ssd_bytes_written_per_step", 0}};
  add_wear(json, wear, schedule.problem().machine);
  CHECK(json["memory"]["ssd"]["peak_bytes"] == wear.store.all());
  CHECK(json["ssd_bytes_written_per_step"] == std::llround(wear.bytes_per_step()));
  CHECK(json["ssd_bytes_written_per_step"] > 0);
  CHECK(json["durability"]["commit_every"] == 50);
  CHECK(json["wear"]["run_bytes"].is_null());
}

}  // namespace
}  // namespace spillway
