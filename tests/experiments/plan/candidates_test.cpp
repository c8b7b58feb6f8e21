#include "experiments/plan/candidates.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "experiments/train/train_plan.hpp"

namespace spillway {
namespace {

Problem gpt13b(std::int64_t batch) {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-12ssd");
  problem.workload = {batch, batch, 1024, Precision::bf16, GradientWidth::automatic};
  return problem;
}

const WholeRun no_commits = {{DurabilityMode::off, 0}, {}};

double seconds(const Candidate& candidate) { return candidate.evaluation.result->step_seconds; }

TEST_CASE("what does not fit is listed without a result, and never chosen") {
  Problem problem = gpt13b(8);
  const Candidates candidates =
      evaluate_candidates(problem, true, candidate_policies(), no_commits, 3);
  std::size_t of_one_rank = 0;
  for (const PolicyInfo& info : builtin_policies()) of_one_rank += info.for_several_ranks ? 0 : 1;
  REQUIRE(candidates.all.size() == of_one_rank + 1);  // fuyou:swap=auto
  REQUIRE(candidates.chosen);
  for (const Candidate& one : candidates.all) {
    CHECK(one.evaluation.result.has_value() == one.evaluation.schedule.fits());
    if (one.evaluation.result) CHECK(seconds(one) >= seconds(candidates.all[*candidates.chosen]));
  }
  // resident: 13B parameters, 16 bytes each, in 24 GB
  CHECK_FALSE(candidates.all[0].evaluation.schedule.fits());
  problem.machine.gpu.memory = std::uint64_t{1} << 20;
  const Candidates none = evaluate_candidates(problem, false, {"fuyou", "resident"}, no_commits, 2);
  CHECK_FALSE(none.chosen);
}

TEST_CASE("auto takes the fastest plan, and one nearly as fast that writes less is pointed out") {
  // fuyou moves all state through the drives in each step, greedysnake keeps it in memory and
  // writes but commits.
  Candidates found = evaluate_candidates(gpt13b(8), false, {"fuyou", "greedysnake"}, WholeRun{}, 3);
  REQUIRE(found.all.size() == 2);
  REQUIRE(found.all[1].wear.bytes_per_step() < found.all[0].wear.bytes_per_step());
  const auto chosen_at = [&](double fuyou, double greedysnake) {
    found.all[0].evaluation.result->step_seconds = fuyou;
    found.all[1].evaluation.result->step_seconds = greedysnake;
    choose(found);
    return *found.chosen;
  };
  CHECK(chosen_at(10, 10.2) == 0);
  CHECK(found.writes_less == 1u);
  CHECK(chosen_at(10, 10.4) == 0);  // more than 3 % slower
  CHECK_FALSE(found.writes_less);
  CHECK(chosen_at(10, 9) == 1);
  CHECK_FALSE(found.writes_less);
  CHECK(chosen_at(9, 9) == 1);  // of two as fast the one that writes less
  CHECK_FALSE(found.writes_less);
}

TEST_CASE("a store whose second copies are too large for the drives does not fit, and says why") {
  Problem problem = gpt13b(8);
  // 26 GB of parameters and 156 GB of state: once they fit 300 GB, twice they do not.
  problem.machine.ssd.capacity = 300'000'000'000;
  const std::vector<std::string> policy = {"zero-infinity"};
  const Candidates durable = evaluate_candidates(problem, false, policy, WholeRun{}, 2);
  REQUIRE(durable.all[0].evaluation.schedule.fits());
  CHECK_FALSE(durable.chosen);
  CHECK_FALSE(durable.all[0].evaluation.result);
  try {
    require_fit(durable.all[0]);
    FAIL("it fits");
  } catch (const FitError& error) {
    CHECK_THAT(error.what(), Catch::Contains("with durability its store needs"));
    CHECK_THAT(error.hint(), Catch::Contains("durability = off"));
  }
  CHECK(to_json(durable.all[0])["fits"] == false);
  CHECK(evaluate_candidates(problem, false, policy, no_commits, 2).chosen);
  // Drives that a file knows nothing of are not too small.
  problem.machine.ssd = {};
  CHECK(evaluate_candidates(problem, false, {"zero-offload"}, WholeRun{}, 2).chosen);
}

TEST_CASE("a training plan is the choice among the candidates, and its prediction") {
  Problem problem = gpt13b(8);
  problem.workload.gradient = GradientWidth::bits32;
  TrainHardware gpu;
  gpu.cuda = true;
  const WholeRun run;
  const TrainPlan plan = plan_training(problem, true, "auto", false, {}, gpu, run);
  const Candidates candidates = evaluate_candidates(problem, true, candidate_policies(), run);
  const Evaluation& best = candidates.all[*candidates.chosen].evaluation;
  CHECK(plan.policy == best.schedule.policy());
  CHECK(plan.problem.workload.micro_batch == best.schedule.problem().workload.micro_batch);
  REQUIRE(plan.predicted_step_seconds);
  CHECK(*plan.predicted_step_seconds == best.result->step_seconds);
  // A file that describes a GPU predicts nothing of the CPU.
  CHECK_FALSE(plan_training(problem, true, "auto", false, {}).predicted_step_seconds);
  // Without a machine file there is nothing to predict with.
  CHECK_THROWS_AS(plan_training(problem, true, "auto", true, {}), InputError);
  problem.machine.gpu.memory = std::uint64_t{1} << 20;
  CHECK_THROWS_AS(plan_training(problem, false, "fuyou", false, {}), FitError);
}

TEST_CASE("a candidate that cannot run the problem is listed apart, with the reason") {
  Problem problem = gpt13b(8);
  problem.machine.ssd = {};
  const std::string by_model = "greedysnake:placement=lp";
  const Candidates some =
      evaluate_candidates(problem, false, {by_model, "zero-offload"}, no_commits, 2);
  REQUIRE(some.refused.size() == 1);
  CHECK(some.refused[0].policy == by_model);
  CHECK_THAT(some.refused[0].reason, Catch::Contains("needs ssd"));
  CHECK(some.all.size() == 1);
  CHECK_THROWS_AS(evaluate_candidates(problem, false, {by_model}, no_commits, 2), InputError);
  CHECK_THROWS_AS(
      evaluate_candidates(problem, false, {"zero-offload", "no-such-policy"}, no_commits, 2),
      InputError);
}

TEST_CASE(
    "candidates share what is tried for one answer, and those it does not suffice for say so") {
  const std::vector<std::string> policies = {"zero-offload", "fuyou", "greedysnake"};
  const auto evaluated_with = [&](std::uint64_t tasks_of_one) {
    return evaluate_candidates(gpt13b(8), false, policies, no_commits, 2,
                               [&](const Problem& problem, const std::string& policy, int steps) {
                                 Evaluation one = evaluate(problem, policy, steps);
                                 one.tasks = tasks_of_one;
                                 return one;
                               });
  };
  CHECK(evaluated_with(most_tasks_tried / 3).refused.empty());
  const Candidates some = evaluated_with(most_tasks_tried / 2 + 1);
  CHECK(some.all.size() == 2);
  REQUIRE(some.refused.size() == 1);
  CHECK(some.refused[0].policy == "greedysnake");
  CHECK_THAT(some.refused[0].reason, Catch::Contains("not tried"));
}

}  // namespace
}  // namespace spillway
