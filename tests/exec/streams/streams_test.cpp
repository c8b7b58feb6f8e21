// Lanes that are streams, on threads: whatever is late by however much, training has the numbers of
// the device that blocks, to the bit, and the executor keeps every rule of exec/run/streams.hpp.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <random>

#include "exec/run/stream_plan.hpp"
#include "tests/exec/io/fault_drive.hpp"
#include "tests/exec/streams/stream_training.hpp"
#include "tests/policies/random_policy.hpp"

namespace spillway::test {
namespace {

// The same training on streams: the numbers of the device that blocks.
void check_on_streams(const TrainingOptions& options, const StreamOptions& streams) {
  const Numbers expected = train_all(options);
  StreamRecord record;
  const Numbers found = train_all(on_streams(options, record, streams));
  REQUIRE(difference(expected, found) == "");
  REQUIRE(record.broken() == "");
  CHECK(record.works > 0);
}

}  // namespace

TEST_CASE("Streams: every policy has the numbers of the device that blocks", "[streams]") {
  const Workbench bench(folder_for_many_runs());
  Watchdog watchdog;
  const std::uint64_t seed = Seeds(1).first;
  std::mt19937_64 random(seed);
  INFO(to_text(seed));
  for (const std::string& policy : stream_policies()) {
    for (const ClipScope scope : {ClipScope::off, ClipScope::global, ClipScope::layer}) {
      TrainingOptions options = random_problem(bench, random);
      options.policy = policy;
      options.problem.workload.clip = {scope, 0.1};
      INFO(policy << ", clipping " << to_string(options.problem.workload.clip));
      watchdog.now(fmt::format("{}, {}", to_text(seed), policy));
      check_on_streams(options, {.seed = random()});
    }
  }
}

TEST_CASE("Streams: any legal choice of a policy has the numbers of the device that blocks",
          "[streams]") {
  const Workbench bench(folder_for_many_runs());
  Watchdog watchdog;
  const Seeds seeds(60);
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    INFO(to_text(seed));
    watchdog.now(to_text(seed));
    std::mt19937_64 random(seed);
    TrainingOptions options = random_problem(bench, random);
    const RandomPolicyOptions policy{random(), true};
    options.make_policy = [policy] { return make_random_policy(policy); };
    FaultPlan plan;
    plan.chances = {0.1, 0.05, 0.05, 0.05, 0.05};
    plan.most_latency = std::chrono::microseconds(random() % 2 * 100);
    FaultDrive drive(seed, plan);
    if (random() % 2 == 0) options.make_ring = drive.rings(random() % 2 == 0);
    check_on_streams(options, {.seed = random(), .most_delay_us = random() % 4 == 0 ? 0 : 100});
  }
}

TEST_CASE("Streams: a task begins when all that it waits for has ended, by the device's own times",
          "[streams]") {
  const Workbench bench(folder_for_many_runs());
  Watchdog watchdog;
  const std::uint64_t seed = Seeds(1).first;
  INFO(to_text(seed));
  std::mt19937_64 random(seed);
  for (const std::string& policy : stream_policies()) {
    INFO(policy);
    watchdog.now(fmt::format("{}, {}", to_text(seed), policy));
    TrainingOptions options = bench.options(policy, 2, 16, 2);
    options.steps = 8;
    StreamRecord record;
    Training training(on_streams(options, record, {.seed = random()}));
    Trace trace;
    training.run([](const StepResult&) {}, &trace);
    CHECK(record.broken() == "");
    const Schedule& schedule = training.schedule();
    REQUIRE(trace.spans.size() == schedule.tasks().size());
    std::vector<const Span*> by_task(trace.spans.size());
    for (const Span& span : trace.spans) by_task[span.task] = &span;
    std::array<const Span*, lane_count> last{};
    for (TaskId id = 0; id < by_task.size(); ++id) {
      REQUIRE(by_task[id] != nullptr);
      REQUIRE(by_task[id]->start_ns <= by_task[id]->end_ns);
      const Span*& before = last[static_cast<std::size_t>(schedule.tasks()[id].lane)];
      if (before != nullptr) REQUIRE(before->end_ns <= by_task[id]->start_ns);
      before = by_task[id];
      for (const TaskId next : schedule.successors(id))
        REQUIRE(by_task[id]->end_ns <= by_task[next]->start_ns);
    }
  }
}

TEST_CASE("Streams: steps on the GPU alone are replayed as graphs, over several runs",
          "[streams]") {
  const Workbench bench(folder_for_many_runs());
  Watchdog watchdog;
  const std::uint64_t seed = Seeds(1).first;
  INFO(to_text(seed));
  watchdog.now(to_text(seed));
  for (const ClipScope scope : {ClipScope::off, ClipScope::global, ClipScope::layer}) {
    TrainingOptions options = bench.options("resident", 2, 16, 2);
    options.problem.workload.clip = {scope, 0.1};
    if (scope == ClipScope::layer) {  // whose masks are of the step that is replayed
      options.problem.model.lora_rank = 4;
      options.problem.model.lora_dropout = 0.25;
    }
    options.optimizer.warmup_steps = 5;
    options.optimizer.decay_steps = 18;
    options.steps = 23;
    options.steps_per_run = 10;
    const Numbers expected = train_all(options);
    StreamRecord record;
    CHECK(difference(expected, train_all(on_streams(options, record, {.seed = seed}))) == "");
    CHECK(record.broken() == "");
    // All but the first three of each schedule; captured once per slot.
    CHECK(record.replays == 20 - StreamPlan::slots);
    CHECK(record.graphs == StreamPlan::slots);
  }
}

TEST_CASE("Streams: thousands of tiny steps, none lost and none late for ever", "[streams]") {
  const Workbench bench(folder_for_many_runs());
  Watchdog watchdog;
  const std::uint64_t seed = Seeds(1).first;
  INFO(to_text(seed));
  std::mt19937_64 random(seed);
  for (const char* const policy :
       {"resident", "zero-offload", "deep-optimizer-states:stride=2,sub_group_size=1",
        "greedysnake:snake=off,alpha=0.4,optimizer_ssd=0,parameters_ssd=0,checkpoints_ssd=0"}) {
    for (const int most_delay_us : {0, 3}) {
      INFO(policy << ", delays of up to " << most_delay_us << " us");
      watchdog.now(fmt::format("{}, {}, {} us", to_text(seed), policy, most_delay_us));
      TrainingOptions options = bench.options(policy, 1, 16, 1);
      options.problem.workload.batch = options.problem.workload.micro_batch = 1;
      options.problem.workload.sequence = 8;
      options.steps = 500;
      options.steps_per_run = most_delay_us == 0 ? 100 : 7;
      check_on_streams(options, {.seed = random(), .most_delay_us = most_delay_us});
    }
  }
}

}  // namespace spillway::test
