// The answers to questions, held against trying everything on small models.
#include <catch2/catch.hpp>
#include <random>

#include "experiments/plan/problem_request.hpp"
#include "experiments/questions/largest_batch.hpp"
#include "experiments/questions/largest_model.hpp"
#include "experiments/questions/largest_that_holds.hpp"
#include "experiments/questions/smallest_batch.hpp"

namespace spillway {
namespace {

Problem tiny(std::int64_t batch) {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = load_machine("testbed");
  problem.workload.batch = problem.workload.micro_batch = batch;
  problem.workload.sequence = 256;
  problem.workload.precision = Precision::fp32;
  return problem;
}

PlansAsked asked(std::vector<std::string> policies) {
  PlansAsked plans;
  plans.policies = std::move(policies);
  return plans;
}

// Whether the batch fits in some way, by whole evaluations.
bool fits(const Planner& planner, const Problem& problem, std::int64_t batch) {
  for (std::int64_t parts = 1; parts <= std::min(batch, most_micro_batches); ++parts) {
    if (batch % parts != 0) continue;
    Problem one = problem;
    one.workload.batch = batch;
    one.workload.micro_batch = batch / parts;
    if (best_plan(planner, one, false)) return true;
  }
  return false;
}

TEST_CASE("the largest value that holds is found, also behind a small gap") {
  for (const std::int64_t limit : {1, 2, 3, 7, 64, 65, 1000}) {
    const auto below = [&](std::int64_t value) { return value <= limit; };
    CHECK(largest_that_holds(1, 1000, below) == limit);
    CHECK(largest_that_holds(1, limit, below) == limit);
    const auto with_gap = [&](std::int64_t value) { return value <= limit || value == limit + 3; };
    CHECK(largest_that_holds(1, 2000, with_gap) == limit + 3);
  }
}

TEST_CASE("the largest batch fits, and none of the next six does") {
  // Little host memory and small drives: what waits for backward fills them.
  std::mt19937_64 random(7);
  int by_memory = 0;
  for (const char* policy : {"greedysnake", "greedysnake:checkpoints_ssd=0.5", "resident"}) {
    for (int round = 0; round < 2; ++round) {
      Problem problem = tiny(1);
      problem.machine.gpu.memory = 14'000'000 + random() % 20'000'000;
      problem.machine.host.memory = 16'000'000 + random() % 12'000'000;
      problem.machine.ssd.capacity = 40'000'000 + random() % 10'000'000;
      INFO(policy << ", gpu " << problem.machine.gpu.memory << ", host "
                  << problem.machine.host.memory << ", ssd " << problem.machine.ssd.capacity);
      const Planner planner = planner_of(asked({policy}));
      const LargestBatch answer = largest_batch(problem, planner);
      if (answer.batch == 0) {
        CHECK_FALSE(fits(planner, problem, 1));
        continue;
      }
      REQUIRE(answer.plan);
      CHECK(answer.plan->evaluation.schedule.problem().workload.batch == answer.batch);
      CHECK(answer.plan->evaluation.schedule.fits());
      CHECK(fits(planner, problem, answer.batch));
      if (answer.end != LargestBatch::End::memory) continue;
      ++by_memory;
      for (std::int64_t more = 1; more <= 6; ++more) {
        INFO(answer.batch << " + " << more << " sequences");
        CHECK_FALSE(fits(planner, problem, answer.batch + more));
      }
    }
  }
  CHECK(by_memory >= 4);
}

TEST_CASE("the largest batch is that of all ranks, and one more of each does not fit") {
  ProblemRequest request;
  request.model = "gpt-13b";
  request.machine = "a100-80gb-4gpu";
  request.workload = {{"batch", "4"}, {"micro_batch", "1"}};
  const Problem problem = request.problem();
  REQUIRE(problem.workload.ranks == 4);
  PlansAsked plans = asked({"resident"});
  const Planner planner = planner_of(plans);
  const LargestBatch answer = largest_batch(problem, planner);
  REQUIRE(answer.plan);
  CHECK(answer.batch % 4 == 0);
  CHECK(answer.plan->evaluation.schedule.problem().workload.batch == answer.batch);
  Problem more = problem;
  more.workload.batch = answer.batch;
  more.workload.micro_batch = answer.micro_batch;
  CHECK(best_plan(planner, more, false));
}

TEST_CASE("a largest batch that others surpass is not said to be without an end", "[slow]") {
  ProblemRequest request;
  request.model = "gpt-30b";
  request.machine = "rtx3090-2ssd";
  request.overrides = {"host.memory=64GiB"};
  PlansAsked plans = asked({"greedysnake"});
  const LargestBatch any = largest_batch(request.problem(), planner_of(plans));
  CHECK(any.batch > 256);  // which one sequence at a time makes up with as many as are tried
  CHECK(any.end != LargestBatch::End::most_tried);
  request.workload["micro_batch"] = "8";
  plans.choose_micro_batch = false;
  const LargestBatch of_8 = largest_batch(request.problem(), planner_of(plans));
  CHECK((any.end == LargestBatch::End::most_tasks || any.batch >= of_8.batch));
}

TEST_CASE("the largest batch keeps to the micro-batch that is set") {
  Problem problem = tiny(3);
  problem.machine.host.memory = 20'000'000;
  problem.machine.ssd.capacity = 46'000'000;
  PlansAsked plans = asked({"greedysnake"});
  plans.choose_micro_batch = false;
  const LargestBatch answer = largest_batch(problem, planner_of(plans));
  REQUIRE(answer.plan);
  CHECK(answer.micro_batch == 3);
  CHECK(answer.batch % 3 == 0);
}

TEST_CASE("a batch that memory ends in large micro-batches goes on in small ones") {
  ProblemRequest request;
  request.model = "gpt-13b";
  request.machine = "rtx4090-2ssd";
  const LargestBatch answer = largest_batch(request.problem(), planner_of(asked({"greedysnake"})));
  REQUIRE(answer.plan);
  CHECK(answer.batch == 4096);
  CHECK(answer.end == LargestBatch::End::most_tried);
}

TEST_CASE("any search for plans answers as the policies themselves do") {
  const Problem problem = tiny(1);
  const PlansAsked plans = asked({"resident"});
  const Planner other = planner_of(
      [&](const Problem& one, bool choose_micro_batch) {
        return evaluate_candidates(one, choose_micro_batch, {"resident"}, {});
      },
      WholeRun().durability, true);
  const LargestBatch mine = largest_batch(problem, planner_of(plans));
  const LargestBatch theirs = largest_batch(problem, other);
  REQUIRE(mine.batch > 1);
  CHECK(mine.end == LargestBatch::End::most_tried);  // gradients are summed where they are
  CHECK(theirs.batch == mine.batch);
  CHECK(theirs.micro_batch == mine.micro_batch);
}

TEST_CASE("as many layers as are answered fit, and one more do not") {
  for (const char* policy : {"resident", "zero-infinity", "fuyou"}) {
    Problem problem = tiny(4);
    problem.machine.gpu.memory = 60'000'000;
    problem.machine.host.memory = 60'000'000;
    problem.machine.ssd.capacity = 500'000'000;
    INFO(policy);
    const Planner planner = planner_of(asked({policy}));
    const LargestModel answer = largest_model(problem, planner);
    REQUIRE(answer.plan);
    CHECK_FALSE(answer.reached_end);
    CHECK_FALSE(answer.full.empty());
    for (std::int64_t more = 0; more <= 4; ++more) {
      problem.model.layers = answer.layers + more;
      INFO(problem.model.layers << " layers");
      CHECK(fits(planner, problem, 4) == (more == 0));
      if (more == 0) CHECK(answer.parameters == problem.model.parameters());
    }
  }
}

TEST_CASE("the largest model of a family fits, and no larger one does") {
  Problem problem = tiny(2);
  problem.model = load_model("gpt2-355m");
  problem.machine = load_machine("rtx4090-12ssd", {"ssd.count=1", "ssd.capacity=40GB"});
  problem.workload.precision = Precision::bf16;
  const Planner planner = planner_of(asked({"zero-infinity"}));
  const LargestModel answer = largest_model(problem, planner);
  REQUIRE(answer.of_family);
  REQUIRE(answer.family.size() >= 4);
  for (std::size_t i = 0; i < answer.family.size(); ++i) {
    if (i > 0) CHECK(answer.family[i].parameters() >= answer.family[i - 1].parameters());
    CHECK(answer.family[i].name.rfind("gpt2-", 0) == 0);
    problem.model = answer.family[i];
    if (i > *answer.of_family) CHECK_FALSE(fits(planner, problem, 2));
    if (i == *answer.of_family) CHECK(fits(planner, problem, 2));
  }
}

TEST_CASE("of larger models as much is trained as was asked of the model: adapters, last layers") {
  const Planner planner = planner_of(asked({"greedysnake"}));
  Problem problem = tiny(2);
  problem.machine.gpu.memory = 20'000'000;
  problem.machine.host.memory = 24'000'000;
  const LargestModel all = largest_model(problem, planner, {});
  problem.model.lora_rank = 4;
  const LargestModel adapters = largest_model(problem, planner, {});
  REQUIRE(all.plan);
  REQUIRE(adapters.plan);
  CHECK(adapters.layers > all.layers);
  const auto model_of = [](const auto& plan) -> const ModelSpec& {
    return plan->evaluation.schedule.problem().model;
  };
  CHECK(model_of(adapters.plan).lora_rank == 4);
  REQUIRE(adapters.of_family_plan);
  CHECK(model_of(adapters.of_family_plan).lora_rank == 4);
  problem.model.lora_rank = 0;
  problem.model.frozen_layers = 3;  // of 4
  const LargestModel last = largest_model(problem, planner, {});
  REQUIRE(last.plan);
  CHECK(model_of(last.plan).frozen_layers == last.layers - 1);
  CHECK(last.layers > all.layers);
}

TEST_CASE("a model that is not built in has a family by its architecture") {
  ModelSpec model = load_model("gpt-tiny");
  model.name = "mine";
  for (const ModelSpec& one : family_of(model)) CHECK(one.architecture == Architecture::gpt);
  CHECK(family_of(model).size() > 10);
}

TEST_CASE("the smallest batch reaches the share, and no smaller one does") {
  for (const char* policy : {"zero-infinity", "greedysnake", "fuyou"}) {
    for (const double share : {0.6, 0.9}) {
      Problem problem = tiny(1);
      problem.machine.ssd.read = problem.machine.ssd.write = problem.machine.ssd.total = 250e6;
      INFO(policy << ", " << share);
      const Planner planner = planner_of(asked({policy}));
      const SmallestBatch answer = smallest_batch(problem, planner, share);
      REQUIRE(answer.peak.batch > 1);
      REQUIRE(answer.plan);
      CHECK(answer.exact);
      const double wanted = share * answer.peak.tokens_per_second;
      CHECK(answer.smallest.tokens_per_second >= wanted);
      CHECK(answer.plan->evaluation.result->tokens_per_second == answer.smallest.tokens_per_second);
      for (std::size_t i = 1; i < answer.curve.size(); ++i)
        CHECK(answer.curve[i].batch > answer.curve[i - 1].batch);
      for (const BatchPoint& point : answer.curve)
        CHECK(point.tokens_per_second <= answer.peak.tokens_per_second);
      for (std::int64_t batch = 1; batch < answer.smallest.batch; ++batch) {
        problem.workload.batch = problem.workload.micro_batch = batch;
        const std::optional<Candidate> plan = best_plan(planner, problem, true);
        if (!plan) continue;
        INFO(batch << " sequences");
        CHECK(plan->evaluation.result->tokens_per_second < wanted);
      }
    }
  }
}

TEST_CASE("where nothing fits, no question has an answer") {
  Problem problem = tiny(1);
  problem.machine.gpu.memory = 100'000;
  const Planner planner = planner_of(asked({"zero-infinity", "resident"}));
  CHECK(largest_batch(problem, planner).batch == 0);
  CHECK(largest_model(problem, planner).layers == 0);
  CHECK(smallest_batch(problem, planner, 0.9).peak.batch == 0);
}

}  // namespace
}  // namespace spillway
