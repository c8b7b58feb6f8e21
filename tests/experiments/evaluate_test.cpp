#include "experiments/evaluate.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "experiments/train_plan.hpp"

namespace spillway {
namespace {

Problem gpt13b(std::int64_t batch) {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-12ssd");
  problem.workload = {batch, batch, 1024, Precision::bf16, GradientWidth::automatic};
  return problem;
}

TEST_CASE("the best micro-batch is the one that a look at every divisor finds") {
  Problem problem = gpt13b(12);
  for (const char* policy : {"zero-infinity", "fuyou", "greedysnake"}) {
    double most = 0;
    for (const std::int64_t micro_batch : {1, 2, 3, 4, 6, 12}) {
      problem.workload.micro_batch = micro_batch;
      const Evaluation one = evaluate(problem, policy);
      if (one.result) most = std::max(most, one.result->tokens_per_second);
    }
    const Evaluation best = evaluate_best_micro_batch(problem, policy);
    INFO(policy);
    REQUIRE(best.result);
    CHECK(best.result->tokens_per_second == most);
  }
}

TEST_CASE("a batch with a large prime factor still finds the micro-batch that fits") {
  // 521 is prime: its only parts are 1 and 521, and 521 sequences at once do not fit.
  Problem problem = gpt13b(521);
  REQUIRE_FALSE(evaluate(problem, "zero-offload").result);
  const Evaluation best = evaluate_best_micro_batch(problem, "zero-offload", 2);
  REQUIRE(best.result);
  CHECK(best.schedule.problem().workload.micro_batch == 1);
}

TEST_CASE("micro-batches that the gradient's width does not go with are left out") {
  // 16-bit gradients cannot be summed: one micro-batch only.
  Problem problem = gpt13b(8);
  problem.workload.gradient = GradientWidth::bits16;
  const Evaluation best = evaluate_best_micro_batch(problem, "greedysnake");
  REQUIRE(best.result);
  CHECK(best.schedule.problem().workload.micro_batch == 8);
}

TEST_CASE("machine files measured on a GPU are evaluated as GPUs train") {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = load_machine("h200");
  problem.workload = {12, 12, 64, Precision::bf16, GradientWidth::automatic};
  const auto at_once = [&] {
    return evaluation_on(problem.machine)(problem, "resident", 2)
        .schedule.problem()
        .workload.sequences_at_once;
  };
  CHECK(at_once() == 1);  // from a datasheet: as the papers' frameworks are modelled
  problem.machine.kernels.push_back({"forward", "some shape", 1, 1, 0, {1}});
  CHECK(at_once() == 12);
  problem.machine.gpu.is_cpu = true;
  CHECK(at_once() == 1);
}

TEST_CASE("what does not fit is listed without a result, and never chosen") {
  Problem problem = gpt13b(8);
  const auto all = evaluate_policies(problem, true);
  REQUIRE(all.size() == builtin_policies().size());
  const auto best = fastest(all);
  REQUIRE(best);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].result.has_value() == all[i].schedule.fits());
    if (all[i].result)
      CHECK(all[i].result->tokens_per_second <= all[*best].result->tokens_per_second);
  }
  CHECK_FALSE(all[0].schedule.fits());  // resident: 13B parameters, 16 bytes each, in 24 GB
  problem.machine.gpu.memory = std::uint64_t{1} << 20;
  CHECK_FALSE(fastest(evaluate_policies(problem, false)));
}

TEST_CASE("a training plan settles policy, micro-batch and prediction") {
  Problem problem = gpt13b(8);
  problem.workload.gradient = GradientWidth::bits32;
  TrainHardware gpu;
  gpu.cuda = true;
  const TrainPlan plan = plan_training(problem, true, "auto", false, {}, gpu);
  const auto all = evaluate_policies(problem, true);
  const Evaluation& best = all[*fastest(all)];
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

}  // namespace
}  // namespace spillway
