// Evaluations: batches whose losses are computed in the midst of a training, with its state where
// that has it.
#include <catch2/catch.hpp>
#include <random>

#include "policies/model/scratch.hpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/random_policy.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

void check_evaluation(const Schedule& evaluation) {
  REQUIRE(evaluation.evaluates());
  REQUIRE(find_home_error(evaluation) == "");
  REQUIRE(find_overlap(evaluation) == "");
  REQUIRE(find_race(evaluation) == "");
  REQUIRE(find_dataflow_error(evaluation) == "");
  REQUIRE(find_vain_write(evaluation) == "");
  for (const Task& task : evaluation.tasks()) REQUIRE(task.lane != Lane::ssd_write);
}

}  // namespace

TEST_CASE("Every policy's evaluation computes each loss from the state that its training left",
          "[evaluation]") {
  for (const std::string& policy : policy_settings()) {
    for (const int micro_batches : {1, 3}) {
      for (const char* const what : {"all", "adapters", "last layer", "llama"}) {
        Problem problem = tiny_problem(3, micro_batches);
        if (what == std::string("adapters")) {
          problem.model.lora_rank = 4;
          problem.model.lora_targets = "all-linear";
        }
        if (what == std::string("last layer")) problem.model.frozen_layers = 2;
        if (what == std::string("llama")) make_llama(problem.model, 77);
        INFO(policy << ", " << micro_batches << " micro-batches, " << what);
        if (is_refused_plan(problem, policy)) continue;
        const Schedule training = build_schedule(problem, policy, 2);
        const Schedule evaluation = build_evaluation(training, 3);
        check_evaluation(evaluation);
        // Where there is room for a training, there is room to evaluate it: at most a forward
        // computes in scratch what it saves in memory that is taken for this in training.
        const std::uint64_t scratch = forward_scratch_bytes(problem, saved_none);
        for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd})
          REQUIRE(evaluation.use(tier).live_peak_bytes <=
                  training.use(tier).live_peak_bytes + (tier == Tier::gpu ? scratch : 0));
      }
    }
  }
}

TEST_CASE("So does that of any legal choice", "[evaluation]") {
  const std::uint64_t first = std::random_device{}();
  INFO("first seed " << first);
  std::size_t evaluated = 0;
  for (std::uint64_t seed = first; seed < first + 200; ++seed) {
    std::mt19937_64 random(seed);
    Problem problem =
        tiny_problem(1 + static_cast<int>(random() % 4), 1 + static_cast<int>(random() % 4),
                     random() % 2 ? Precision::bf16 : Precision::fp32);
    if (random() % 2 == 0) make_llama(problem.model, random());
    freeze_some(problem.model, random());
    INFO("seed " << seed);
    const auto policy = make_random_policy({seed, random() % 2 == 0});
    const Schedule training = build_schedule(problem, *policy, 2);
    const Schedule evaluation = build_evaluation(training, *policy, 2);
    check_evaluation(evaluation);
    evaluated += evaluation.tasks().size();
  }
  CHECK(evaluated > 200);
}

TEST_CASE("An evaluation computes forwards and losses, and moves no gradient", "[evaluation]") {
  const Problem problem = tiny_problem(4, 3);
  const Schedule training = build_schedule(problem, "greedysnake:parameters_ssd=1", 1);
  const Schedule evaluation = build_evaluation(training, 1);
  double flops = 0;
  std::uint64_t to_host = 0, checkpoints = 0;
  for (const Task& task : evaluation.tasks()) {
    flops += task.flops;
    if (task.kind == TaskKind::d2h) to_host += task.bytes;
    if (task.kind == TaskKind::forward && task.layer > 0) checkpoints += checkpoint_bytes(problem);
  }
  CHECK(flops == Approx(problem.model.forward_flops(problem.workload.batch, 16)).epsilon(1e-9));
  CHECK(to_host <= checkpoints);
  CHECK(evaluation.use(Tier::gpu).peak_bytes < training.use(Tier::gpu).peak_bytes);
}
