// Whether a machine is what its file says, from what was recorded of a training.
#include "experiments/train/prediction_check.hpp"

#include <catch2/catch.hpp>

#include "experiments/plan/evaluate.hpp"
#include "experiments/questions/robustness.hpp"
#include "sim/to_trace.hpp"

namespace spillway {
namespace {

Schedule schedule_of(int steps) {
  Problem problem;
  problem.model = load_model("gpt2-355m");
  problem.machine = load_machine("rtx4090-12ssd");
  problem.workload = {8, 2, 512, Precision::bf16, GradientWidth::automatic};
  return build_schedule(problem, "zero-infinity", steps);
}

// What a machine would record whose rate is `factor` times that of the file.
Trace recorded(const Schedule& schedule, const std::string& rate, double factor) {
  const Machine machine = with_scaled_rate(schedule.problem().machine, rate, factor);
  return to_trace(schedule, simulate(schedule, machine));
}

TEST_CASE("a machine that is what its file says holds the prediction") {
  const Schedule schedule = schedule_of(8);
  const std::optional<PredictionCheck> check =
      check_prediction(schedule, recorded(schedule, "gpu", 1));
  REQUIRE(check);
  CHECK(check->holds());
  CHECK(check->error() == 0);
  CHECK(check->steps == 7);  // but for the first, which fills the pipeline
}

TEST_CASE("the lane that is off is named, with the key of its rate") {
  const Schedule schedule = schedule_of(8);
  const std::pair<const char*, const char*> cases[] = {{"gpu", "gpu.compute"},
                                                       {"cpu", "cpu.optimizer"}};
  for (const auto& [rate, lane] : cases) {
    INFO(rate);
    const std::optional<PredictionCheck> check =
        check_prediction(schedule, recorded(schedule, rate, 0.02));
    REQUIRE(check);
    CHECK_FALSE(check->holds());
    CHECK(check->error() > 0);
    CHECK(check->lane == lane);
    CHECK(check->lane_measured_seconds > check->lane_predicted_seconds);
    CHECK(check_prediction(schedule, recorded(schedule, rate, 1))->holds());
  }
  const std::optional<PredictionCheck> writes =
      check_prediction(schedule, recorded(schedule, "ssd.write", 0.02));
  REQUIRE(writes);
  CHECK(writes->lane == "ssd.write");
  CHECK(writes->key == "ssd.write");
}

TEST_CASE("too few steps say nothing") {
  const Schedule schedule = schedule_of(4);  // three of them steady
  CHECK_FALSE(check_prediction(schedule, recorded(schedule, "gpu", 0.1)));
  CHECK_FALSE(check_prediction(schedule, Trace()));
}

}  // namespace
}  // namespace spillway
