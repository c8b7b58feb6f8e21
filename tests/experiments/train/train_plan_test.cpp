#include "experiments/train/train_plan.hpp"

#include <catch2/catch.hpp>
#include <filesystem>

#include "base/errors.hpp"
#include "exec/run/available_memory.hpp"
#include "policies/common/policy.hpp"

namespace spillway {
namespace {

Problem tiny_problem() {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.workload.batch = problem.workload.micro_batch = 4;
  problem.workload.sequence = 64;
  problem.workload.precision = Precision::fp32;
  return problem;
}

// Rates of a machine with memory of its own, which is not this computer's.
Machine rates() {
  Machine machine = load_machine("testbed");
  machine.gpu.memory = machine.host.memory = std::uint64_t{1} << 50;
  machine.ssd.capacity = std::uint64_t{1} << 50;
  return machine;
}

const DriveFolders here{{std::filesystem::temp_directory_path()}};

}  // namespace

TEST_CASE("auto without a machine file takes measured rates, and the limits of this computer") {
  TrainHardware hardware;
  std::vector<std::int64_t> asked;
  hardware.measure = [&](const Problem& problem, const std::vector<std::int64_t>& micro_batches) {
    CHECK(problem.model.name == "gpt-tiny");
    asked = micro_batches;
    return rates();
  };
  const TrainPlan plan = plan_training(tiny_problem(), true, "auto", true, here, hardware);
  CHECK(asked == std::vector<std::int64_t>{4, 2, 1});
  CHECK(plan.policy != "auto");
  REQUIRE(plan.predicted_step_seconds);
  CHECK(*plan.predicted_step_seconds > 0);
  const Machine& machine = plan.problem.machine;
  CHECK(machine.gpu.flops == rates().gpu.flops);
  CHECK(machine.gpu.memory <= available_memory());
  CHECK(machine.host.memory <= available_memory());
  CHECK(machine.ssd.capacity <= std::filesystem::space(here.all[0]).capacity);
  CHECK(machine.sources.at("host.memory") == "what this computer has");

  // Limits that are set hold; a micro-batch that is given is the one that is measured.
  Problem limited = tiny_problem();
  limited.machine.gpu.memory = limited.machine.host.memory = 64'000'000;
  limited.machine.sources["gpu.memory"] = "a limit set by hand";
  limited.workload.micro_batch = 2;
  const TrainPlan within = plan_training(limited, false, "auto", true, here, hardware);
  CHECK(asked == std::vector<std::int64_t>{2});
  CHECK(within.problem.machine.gpu.memory == 64'000'000);
  CHECK(within.problem.machine.host.memory == 64'000'000);
  CHECK(within.problem.machine.sources.at("gpu.memory") == "a limit set by hand");

  // A policy that is named needs no rates.
  asked.clear();
  CHECK_FALSE(
      plan_training(tiny_problem(), true, "resident", true, here, hardware).predicted_step_seconds);
  CHECK(asked.empty());
}

TEST_CASE("policies that use a drive that could not be measured are not chosen") {
  TrainHardware hardware;
  hardware.measure = [](const Problem&, const std::vector<std::int64_t>&) {
    Machine machine = rates();
    machine.ssd = {};
    return machine;
  };
  const TrainPlan plan = plan_training(tiny_problem(), false, "auto", true, here, hardware);
  CHECK(plan.problem.machine.ssd.capacity == 0);
  CHECK(build_schedule(plan.problem, plan.policy, 2).use(Tier::ssd).peak_bytes == 0);
}

TEST_CASE("without a way to measure, auto asks for a machine file") {
  CHECK_THROWS_AS(plan_training(tiny_problem(), true, "auto", true, here), InputError);
}

}  // namespace spillway
