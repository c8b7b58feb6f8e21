// Training through the executor on the CUDA backend: the promises of the CPU backend hold there
// too.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "base/errors.hpp"
#include "tests/cuda/device/cuda_training.hpp"

namespace spillway {
namespace {

using test::difference;
using test::in_bf16;
using test::on_cuda;
using test::train;
using test::Trained;
using test::Workbench;

// Snake order adds micro-batches up in another order.
std::string in_common_order(const PolicyInfo& policy) {
  return policy.name == "greedysnake" ? "greedysnake:snake=off" : policy.name;
}

TEST_CASE("CUDA: every policy trains in bf16 bit-identically to resident", "[policies]") {
  const Workbench bench(test::folder_for_many_runs());
  const auto options = [&](const std::string& policy) {
    TrainingOptions o = bench.options(policy, 2, 32, 2);
    o.steps = 6;
    return in_bf16(o);
  };
  const Trained resident = train(options("resident"));
  CHECK(resident.losses.of_step.back() < resident.losses.of_step.front());
  for (const PolicyInfo& policy : builtin_policies()) {
    const std::string text = in_common_order(policy);
    INFO(text);
    const Trained other = train(options(text));
    CHECK(difference(resident.losses, other.losses) == "");
    for (std::size_t s = 0; s < other.norms.size(); ++s)
      CHECK(other.norms[s] == Approx(resident.norms[s]).epsilon(1e-12));
  }
}

// Policies update some or all elements on the CPU, in pieces of their own: the moments are rounded
// by the same bits everywhere. Where several micro-batches make 32-bit gradients, and where one
// makes 16-bit ones.
TEST_CASE("CUDA: with bf16 moments every policy trains bit-identically to resident",
          "[policies][slow]") {
  const Workbench bench(test::folder_for_many_runs());
  for (const int micro_batches : {2, 1}) {
    const auto options = [&](const std::string& policy, MomentWidth moments = MomentWidth::bf16) {
      TrainingOptions o = bench.options(policy, 2, 32, micro_batches);
      o.steps = 5;
      o.problem.workload.moments = moments;
      return in_bf16(o);
    };
    const Trained resident = train(options("resident"));
    CHECK(difference(resident.losses, train(options("resident", MomentWidth::fp32)).losses) != "");
    std::vector<std::string> policies = {"deep-optimizer-states:stride=2,sub_group_size=1"};
    for (const PolicyInfo& policy : builtin_policies()) policies.push_back(in_common_order(policy));
    for (const std::string& policy : policies) {
      INFO(policy << ", " << micro_batches << " micro-batches");
      CHECK(difference(resident.losses, train(options(policy)).losses) == "");
    }
  }
}

TEST_CASE("CUDA: steps with bf16 moments replayed as graphs are those issued task by task",
          "[policies]") {
  const Workbench bench(test::folder_for_many_runs());
  TrainingOptions o = bench.options("resident", 2, 32, 2);
  o.steps = 12;
  o.problem.workload.moments = MomentWidth::bf16;
  o = in_bf16(o);
  const Trained replayed = train(o);
  o.steps_per_run = 1;  // a schedule of one step is not replayed
  CHECK(difference(replayed.losses, train(o).losses) == "");
}

TEST_CASE("CUDA: a few steps with states on the drive are those of resident",
          "[policies][sanitizer]") {
  const Workbench bench(test::folder_for_many_runs());
  const auto losses = [&](const char* policy) {
    TrainingOptions o = bench.options(policy, 2, 32, 2);
    o.steps = 3;
    o.problem.workload.clip = {ClipScope::global, 0.1};
    return train(in_bf16(o)).losses;
  };
  CHECK(difference(losses("resident"), losses("zero-infinity")) == "");
}

TEST_CASE("CUDA: policies agree where one micro-batch makes 16-bit gradients, and with clipping",
          "[policies][slow]") {
  const Workbench bench(test::folder_for_many_runs());
  const auto scope = GENERATE(ClipScope::off, ClipScope::global, ClipScope::layer);
  const auto options = [&](const std::string& policy) {
    TrainingOptions o = bench.options(policy, 2, 32, 1);
    o.problem.workload.sequences_at_once = 2;
    o.problem.workload.clip = {scope, 0.1};
    o.steps = 4;
    return in_bf16(o);
  };
  REQUIRE(options("resident").problem.gradient_bytes() == 2);
  const Trained resident = train(options("resident"));
  for (const PolicyInfo& policy : builtin_policies()) {
    const std::string text = in_common_order(policy);
    INFO(text);
    CHECK(difference(resident.losses, train(options(text)).losses) == "");
  }
}

TEST_CASE("CUDA: the loss in fp32 is the CPU backend's to fp32 rounding, in bf16 to bf16 rounding",
          "[policies][slow]") {
  const Workbench bench(test::folder_for_many_runs());
  TrainingOptions o = bench.options("resident", 2, 32, 2);
  o.steps = 50;
  const Trained cpu = train(o);
  const Trained wide = train(on_cuda(o));
  const Trained narrow = train(in_bf16(o));
  double worst = 0;
  for (std::size_t s = 0; s < 50; ++s) {
    INFO("step " << s);
    CHECK(wide.losses.of_step[s] == Approx(cpu.losses.of_step[s]).epsilon(2e-5));
    worst = std::max(worst, std::abs(narrow.losses.of_step[s] - cpu.losses.of_step[s]));
  }
  // 8 bits of mantissa: a relative error of 2^-9 in every activation. Losses start at log(256)
  // = 5.5.
  INFO("largest difference in bf16 " << worst);
  CHECK(worst < 0.03);
  CHECK(worst > 0);
}

TEST_CASE("CUDA: steps replayed as graphs have the numbers of steps issued task by task",
          "[policies]") {
  const Workbench bench(test::folder_for_many_runs());
  TrainingOptions o = bench.options("resident", 2, 32, 2);
  o.steps = 12;
  o = in_bf16(o);
  const Trained replayed = train(o);
  o.steps_per_run = 1;  // a schedule of one step is not replayed
  CHECK(difference(replayed.losses, train(o).losses) == "");
}

TEST_CASE("CUDA: a trace has every task once, in the lane's order, after what it waits for",
          "[policies][slow]") {
  const Workbench bench(test::folder_for_many_runs());
  const auto policy = GENERATE(as<std::string>{}, "resident", "greedysnake", "zero-infinity");
  INFO(policy);
  TrainingOptions o = bench.options(policy, 2, 32, 2);
  o.steps = 10;
  o = in_bf16(o);
  Training training(o);
  Trace trace;
  training.run([](const StepResult&) {}, &trace);
  const Schedule& schedule = training.schedule();
  REQUIRE(trace.spans.size() == schedule.tasks().size());
  std::vector<const Span*> by_task(trace.spans.size());
  for (const Span& span : trace.spans) {
    by_task[span.task] = &span;
    CHECK(span.start_ns <= span.end_ns);
  }
  // Times of the device are read in floats.
  constexpr std::int64_t rounding = 5'000;
  const auto on_device = [&](TaskId id) {
    const Lane lane = schedule.tasks()[id].lane;
    return lane == Lane::gpu_compute || lane == Lane::pcie_h2d || lane == Lane::pcie_d2h;
  };
  // The device's clock is set by the host's, not quite right on a busy machine. That makes edges to
  // the host look late by what it makes those from the host look early: by how much the worst of
  // each are apart does not depend on it.
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::min() / 2;
  std::int64_t to_host = none, from_host = none;  // end of a task - start of the one that waits
  std::array<const Span*, lane_count> last{};
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
    REQUIRE(by_task[id] != nullptr);
    const Span*& before = last[static_cast<std::size_t>(schedule.tasks()[id].lane)];
    if (before) CHECK(before->end_ns <= by_task[id]->start_ns + rounding);
    before = by_task[id];
    for (const TaskId next : schedule.successors(id)) {
      const std::int64_t late = by_task[id]->end_ns - by_task[next]->start_ns;
      if (on_device(id) == on_device(next)) {
        CHECK(late <= rounding);
      } else {
        std::int64_t& worst = on_device(id) ? to_host : from_host;
        worst = std::max(worst, late);
      }
    }
  }
  CHECK(to_host + from_host <= rounding);
  if (policy != "resident") CHECK(to_host > none);
}

TEST_CASE("CUDA: a stopped training resumes bit for bit, under another policy", "[resume][slow]") {
  const Workbench bench(test::folder_for_many_runs());
  const auto policy = GENERATE(as<std::string>{}, "greedysnake:snake=off,optimizer_ssd=1",
                               "zero-infinity", "fuyou");
  INFO(policy);
  TrainingOptions o = bench.options(policy, 2, 32, 2);
  o.steps = 14;
  o.durability = {DurabilityMode::on, 1};
  o = in_bf16(o);
  o.keep_store = true;
  const Trained whole = train([&] {
    TrainingOptions other = in_bf16(bench.options("resident", 2, 32, 2));
    other.steps = o.steps;
    return other;
  }());
  std::vector<double> losses;
  StoreLocation location;
  {
    Training training(o);
    training.run(
        [&](const StepResult& step) {
          losses.push_back(step.loss);
          if (step.step == 4) training.request_stop();
        },
        nullptr);
    location = training.store_location();
  }
  REQUIRE(losses.size() >= 5);
  REQUIRE(losses.size() < 14);
  o.resume = find_resume_point(location);
  o.policy = "zero-infinity";
  Training resumed(o);
  REQUIRE(resumed.first_step() == static_cast<std::int64_t>(losses.size()));
  test::Losses all;
  const TrainingResult result =
      resumed.run([&](const StepResult& step) { losses.push_back(step.loss); }, nullptr);
  all.of_step = losses;
  all.weights_hash = result.weights_hash;
  CHECK(difference(whole.losses, all) == "");
}

TEST_CASE("CUDA: a loss that is not finite ends training with the layer's name", "[policies]") {
  const Workbench bench(test::folder_for_many_runs());
  TrainingOptions o = bench.options("resident", 2, 32, 2);
  o.optimizer.learning_rate = 1e30;
  CHECK_THROWS_AS(train(in_bf16(o)), MachineError);
}

}  // namespace
}  // namespace spillway
