#include "experiments/plan/evaluate.hpp"

#include <catch2/catch.hpp>

#include "experiments/plan/problem_request.hpp"

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

TEST_CASE(
    "of many candidates some that are spread out are tried first, then those beside the best") {
  const std::vector<std::int64_t> few = {12, 6, 4, 3, 2, 1};
  CHECK(spread_out(few) == few);
  CHECK(candidates_beside(4, few).empty());
  const std::vector<std::int64_t> many = micro_batch_candidates(1680);
  REQUIRE(many.size() == 34);
  const std::vector<std::int64_t> spread = spread_out(many);
  CHECK(spread == std::vector<std::int64_t>{1680, 840, 560, 336, 240, 168, 120, 84, 60, 42, 30, 21,
                                            15, 10, 7});
  CHECK(candidates_beside(60, many) == std::vector<std::int64_t>{80, 70, 56, 48});
  CHECK(candidates_beside(1680, many).empty());
  CHECK(candidates_beside(7, many) == std::vector<std::int64_t>{8});
}

TEST_CASE("a batch with a large prime factor still finds the micro-batch that fits") {
  // 521 is prime: its only parts are 1 and 521, and 521 sequences at once do not fit.
  Problem problem = gpt13b(521);
  REQUIRE_FALSE(evaluate(problem, "zero-offload").result);
  const Evaluation best = evaluate_best_micro_batch(problem, "zero-offload", 2);
  REQUIRE(best.result);
  CHECK(best.schedule.problem().workload.micro_batch == 1);
}

TEST_CASE(
    "the only micro-batch that fits is found, though planning the others takes the most tasks") {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = load_machine("testbed");
  problem.workload = {256, 256, 256, Precision::fp32, GradientWidth::automatic};
  const auto peak = [&](std::int64_t micro_batch) {
    problem.workload.micro_batch = micro_batch;
    return evaluate(problem, "zero-infinity", 2).schedule.use(Tier::gpu).peak_bytes;
  };
  const std::uint64_t least = peak(1), next = peak(2);
  REQUIRE(least < next);
  problem.machine.gpu.memory = (least + next) / 2;
  const Evaluation best = evaluate_best_micro_batch(problem, "zero-infinity", 2);
  REQUIRE(best.result);
  CHECK(best.schedule.problem().workload.micro_batch == 1);
  CHECK(best.left_untried == 0);
  // With next to nothing to look with, it is said that not all was looked at.
  const Evaluation cut = evaluate_best_micro_batch(problem, "zero-infinity", 2, evaluate, 1);
  CHECK_FALSE(cut.result);
  CHECK(cut.left_untried > 0);
}

TEST_CASE("a search ends near its number of tasks, with what it has by then, always the same") {
  const Problem problem = gpt13b(256);
  for (const char* policy : {"zero-infinity", "fuyou", "greedysnake"}) {
    INFO(policy);
    constexpr std::uint64_t most = 200'000;
    const Evaluation all = evaluate_best_micro_batch(problem, policy, 3);
    const Evaluation some = evaluate_best_micro_batch(problem, policy, 3, evaluate, most);
    CHECK(all.tasks > 2 * most);
    CHECK(some.tasks < 2 * most);
    REQUIRE(all.result);
    REQUIRE(some.result);
    CHECK(some.result->tokens_per_second <= all.result->tokens_per_second);
    const Evaluation again = evaluate_best_micro_batch(problem, policy, 3, evaluate, most);
    CHECK(again.schedule.fingerprint() == some.schedule.fingerprint());
  }
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

TEST_CASE("a limit of host memory is what policies may use, also of a machine with a reserve") {
  for (const char* machine : {"rtx4090-12ssd", "rtx4090-2ssd"}) {  // a share; a size
    ProblemRequest request;
    request.model = "gpt-13b";
    request.machine = machine;
    request.host_memory = "100GB";
    const Machine limited = request.problem().machine;
    CHECK(limited.host.memory == 100'000'000'000);
    CHECK(parse_machine(machine_to_toml(limited), "kept").host.memory == limited.host.memory);
  }
}

}  // namespace
}  // namespace spillway
