// Stages of a pipeline that are simulated together: what they take, hold and write.
#include <catch2/catch.hpp>
#include <set>

#include "experiments/pipelines/pipeline_plan.hpp"
#include "experiments/plan/all_ranks.hpp"
#include "experiments/plan/evaluate.hpp"
#include "experiments/plan/problem_request.hpp"
#include "experiments/plan/wear.hpp"
#include "policies/model/units.hpp"
#include "tests/policies/input_error.hpp"

using namespace spillway;

namespace {

Problem problem_of(const std::string& machine, const WorkloadTexts& workload,
                   const std::vector<std::string>& overrides = {}) {
  ProblemRequest request;
  request.model = "gpt-13b";
  request.machine = machine;
  request.workload = workload;
  request.overrides = overrides;
  return request.problem();
}

}  // namespace

TEST_CASE("Stages take what whole stages take that are simulated by another model") {
  for (const char* order : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
    INFO(order);
    const std::vector<std::string> memory = {"gpu.memory=200GB"};
    const Problem problem = problem_of(
        "a100-80gb-4gpu", {{"batch", "32"}, {"micro_batch", "1"}, {"pipeline", "4"}}, memory);
    const Evaluation evaluation = evaluate(problem, order);
    REQUIRE(evaluation.result);
    PipelineRequest request;
    request.problem = problem_of("a100-80gb-4gpu",
                                 {{"batch", "32"}, {"micro_batch", "1"}, {"ranks", "1"}}, memory);
    request.centers = one_data_center(1);
    request.gpus = 4;
    request.recompute = false;
    const PipelinePlan plan = plan_pipeline(request, PipelineOrder(order));
    REQUIRE(plan.result);
    CHECK(evaluation.result->step_seconds ==
          Approx(static_cast<double>(plan.result->step_ns) * 1e-9).epsilon(0.03));
    CHECK(evaluation.result->efficiency <= 1);
    REQUIRE(evaluation.stages.size() == 4);
    for (const StageEvaluation& stage : evaluation.stages) CHECK(stage.layers == 10);
  }
}

TEST_CASE("Stages write to the drives of a node what one GPU writes, and the embedding twice") {
  const auto written = [](const char* pipeline) {
    const Problem problem =
        problem_of("a100-80gb-4gpu",
                   {{"batch", "8"}, {"micro_batch", "1"}, {"ranks", "1"}, {"pipeline", pipeline}});
    const Evaluation evaluation = evaluate(problem, "zero-infinity");
    REQUIRE(evaluation.result);
    const Wear by_result = wear_of(evaluation.schedule, &*evaluation.result, {}),
               by_schedule = wear_of(evaluation.schedule, nullptr, {});
    CHECK(by_schedule.schedule_bytes == Approx(by_result.schedule_bytes).epsilon(0.05));
    return by_result.schedule_bytes;
  };
  const double alone = written("1");
  const ModelSpec model = load_model("gpt-13b");
  const double twice = static_cast<double>(unit_elements(model, embedding_unit(model))) /
                       static_cast<double>(model.parameters());
  for (const char* stages : {"2", "4"}) {
    const double all = written(stages) / alone;
    CHECK(all > 1);
    CHECK(all < 1 + 2 * twice);
  }
}

TEST_CASE(
    "Stages that do not fill their nodes meet for norms, and more than there are GPUs cannot be") {
  const std::vector<std::string> nodes = {"cluster.nodes=2", "cluster.nic=50GB/s"};
  const WorkloadTexts with = {{"batch", "16"}, {"micro_batch", "1"}, {"gradient_clip", "global=1"}};
  for (const char* pipeline : {"8", "10", "16"}) {
    WorkloadTexts workload = with;
    workload["pipeline"] = pipeline;
    CHECK(evaluate(problem_of("h100-80gb-8gpu", workload, nodes), "1f1b").result);
  }
  WorkloadTexts workload = with;
  workload["pipeline"] = "17";
  check_error([&] { problem_of("h100-80gb-8gpu", workload, nodes); },
              "17 stages do not go on 16 GPUs", "cluster.gpus");
}

TEST_CASE("What is asked of one schedule alone is not asked of stages") {
  const Problem problem =
      problem_of("a100-80gb-4gpu", {{"batch", "8"}, {"micro_batch", "1"}, {"pipeline", "2"}});
  check_error([&] { require_no_stages(problem); }, "pipeline = 2: this question is not asked",
              "leave it out");
}

TEST_CASE("What is left open is settled alike in all stages, so that all of them fit") {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine.gpu.is_cpu = true;
  problem.machine.gpu.memory = 16'000'000;
  problem.machine.host.memory = 8'000'000;
  problem.machine.ssd.capacity = 1'000'000'000;
  problem.machine.ssd.count = 1;
  problem.machine.cluster.gpus = problem.machine.cluster.sharing = 3;
  problem.workload = {6, 2, 128, Precision::fp32};
  problem.workload.pipeline = 3;
  const Schedule first = build_schedule(problem, "greedysnake", 2);
  std::set<std::string> texts;
  for (const Schedule& stage : stages_of(first)) {
    CHECK(stage.fits());
    texts.insert(stage.policy());
  }
  for (problem.rank = 0; problem.rank < 3; ++problem.rank)
    texts.insert(build_schedule(problem, "greedysnake", 2).policy());
  CHECK(texts.size() == 1);
  problem.rank = 0;
  CHECK(stage_that_lacks(problem, "greedysnake", 2).fits());
  problem.machine.host.memory = 100'000;
  CHECK_FALSE(stage_that_lacks(problem, "greedysnake", 2).fits());
}
