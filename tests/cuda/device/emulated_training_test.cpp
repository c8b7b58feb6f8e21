// What only the emulator can tell of training on the CUDA backend: which calls it makes, and what
// becomes of it when the GPU is slow or fails.
#ifdef SPILLWAY_EMULATED_GPU
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "exec/cuda/device/cuda_streams.hpp"
#include "exec/run/stream_plan.hpp"
#include "policies/machine/gpu_workspaces.hpp"
#include "tests/cuda/device/cuda_training.hpp"
#include "tests/emulator/emulator.hpp"

namespace spillway {
namespace {

using test::difference;
using test::in_bf16;
using test::train;
using test::Workbench;

TrainingOptions small(const Workbench& bench, const std::string& policy, std::int64_t steps) {
  TrainingOptions o = bench.options(policy, 2, 32, 2);
  o.steps = steps;
  return in_bf16(o);
}

// Calls during run(), of steps that follow one another in one schedule.
std::map<std::string, std::int64_t> calls_of_run(const TrainingOptions& options,
                                                 std::int64_t& synchronizations) {
  Training training(options);
  emulator::reset_counts();
  std::int64_t at_last_step = 0;
  training.run([&](const StepResult&) { at_last_step = emulator::synchronizations(); }, nullptr);
  synchronizations = at_last_step;
  return emulator::counts();
}

TEST_CASE("CUDA emulated: the host never waits for the device inside a step", "[slow]") {
  const Workbench bench(test::folder_for_many_runs());
  for (const PolicyInfo& policy : builtin_policies()) {
    INFO(policy.name);
    std::int64_t few = 0, many = 0;
    TrainingOptions o = small(bench, policy.name, 5);
    o.steps_per_run = 5;
    const auto calls = calls_of_run(o, few);
    o.steps = o.steps_per_run = 15;
    const auto more_calls = calls_of_run(o, many);
    // What a run costs is the setting of the clock, however many steps it has.
    CHECK(few >= 1);
    CHECK(few <= cuda::CudaStreams::most_clock_tries);
    CHECK(many >= 1);
    CHECK(many <= cuda::CudaStreams::most_clock_tries);
    static_assert(cuda::CudaStreams::most_clock_tries < 15);  // less than one a step
    CHECK(more_calls.count("pageable copy") == 0);
    CHECK(more_calls.at("cudaLaunchHostFunc") > calls.at("cudaLaunchHostFunc"));
  }
}

// The least limit with which each policy builds is what training takes at most, while it starts and
// tries algorithms as well.
TEST_CASE("CUDA emulated: a limit of GPU memory holds for all that training takes there") {
  const Workbench bench(test::folder_for_many_runs());
  for (const PolicyInfo& policy : builtin_policies()) {
    INFO(policy.name);
    TrainingOptions o = small(bench, policy.name, 1);
    o.tunes_products = true;
    o.guard_bytes = 0;
    const std::uint64_t peak = build_schedule(o.problem, policy.name, 1).use(Tier::gpu).peak_bytes;
    o.problem.machine.gpu.limit = peak + gpu_workspace_bytes(o.problem);
    Problem largest = o.problem;
    largest.workload.micro_batch = largest.workload.batch;
    o.problem.machine.gpu.limit += gpu_workspace_bytes(largest) - gpu_workspace_bytes(o.problem);
    leave_room_for_workspaces(o.problem);
    CHECK(o.problem.machine.gpu.memory == peak);
    const std::size_t before = emulator::device_bytes();
    emulator::most_device_bytes();
    const Training training(in_bf16(o));
    const std::size_t most = emulator::most_device_bytes() - before;
    CHECK(most <= o.problem.machine.gpu.limit);
    CHECK(most >= training.schedule().use(Tier::gpu).peak_bytes + gpu_workspace_bytes(o.problem));
  }
}

TEST_CASE("CUDA emulated: steps of a schedule on the GPU alone are replayed as graphs") {
  const Workbench bench(test::folder_for_many_runs());
  std::int64_t ignored = 0;
  TrainingOptions o = small(bench, "resident", 20);
  o.steps_per_run = 10;
  const auto calls = calls_of_run(o, ignored);
  // All but the first three; captured once per slot, not again in the second run.
  CHECK(calls.at("cudaGraphLaunch") == 20 - StreamPlan::slots);
  CHECK(calls.at("cudaGraphInstantiate") == StreamPlan::slots);
  // What moves between tiers is not.
  o = small(bench, "zero-infinity", 10);
  CHECK(calls_of_run(o, ignored).count("cudaGraphLaunch") == 0);
}

TEST_CASE("CUDA emulated: nothing is copied but what the schedule copies", "[slow]") {
  const Workbench bench(test::folder_for_many_runs());
  for (const std::string policy : {"resident", "zero-infinity", "greedysnake", "fuyou"}) {
    INFO(policy);
    // Of five steps more, in one schedule each: what is beside them (weights at the end) is equal.
    std::int64_t copies[2], tasks[2];
    for (const int more : {0, 1}) {
      TrainingOptions o = small(bench, policy, 5 + 5 * more);
      o.steps_per_run = static_cast<int>(o.steps);
      Training training(o);
      tasks[more] = 0;
      for (const Task& task : training.schedule().tasks())
        tasks[more] += task.lane == Lane::pcie_h2d || task.lane == Lane::pcie_d2h;
      emulator::reset_counts();
      training.run([](const StepResult&) {}, nullptr);
      copies[more] = emulator::count("cudaMemcpyAsync");
    }
    // Texts, losses, norms and AdamW's constants are read and written by kernels where they lie.
    CHECK(copies[1] - copies[0] == tasks[1] - tasks[0]);
    CHECK((tasks[1] > tasks[0]) == (policy != "resident"));
  }
}

TEST_CASE("CUDA emulated: a slow and uneven GPU changes no number", "[slow]") {
  const Workbench bench(test::folder_for_many_runs());
  const test::Losses expected = train(small(bench, "resident", 5)).losses;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    for (const std::string policy : {"zero-infinity", "greedysnake:snake=off", "fuyou"}) {
      INFO(policy << " seed " << seed);
      emulator::delay_streams(seed, 300);
      emulator::seed(seed);
      CHECK(difference(expected, train(small(bench, policy, 5)).losses) == "");
    }
  }
  emulator::reset();
}

TEST_CASE("CUDA emulated: a failure of the GPU ends training with the name of the error") {
  const Workbench bench(test::folder_for_many_runs());
  for (const std::string policy : {"resident", "zero-infinity"}) {
    INFO(policy);
    {
      Training training(small(bench, policy, 20));
      const auto fail_soon = [&](const StepResult& step) {
        if (step.step == 4) emulator::fail_kernel("attention_forward", 1, cudaErrorIllegalAddress);
      };
      try {
        training.run(fail_soon, nullptr);
        FAIL("nothing was thrown");
      } catch (const MachineError& error) {
        CHECK_THAT(error.what(), Catch::Contains("cudaErrorIllegalAddress"));
      }
    }
    emulator::reset();
  }
}

TEST_CASE("CUDA emulated: a call that fails ends training, and names the call") {
  const Workbench bench(test::folder_for_many_runs());
  for (const char* call : {"cudaMemcpyAsync", "cudaEventRecordWithFlags", "cudaLaunchHostFunc",
                           "cudaStreamWaitEvent", "cudaLaunchKernelExC"}) {
    INFO(call);
    {
      Training training(small(bench, "zero-infinity", 10));
      emulator::fail(call, 30, cudaErrorUnknown);
      try {
        training.run([](const StepResult&) {}, nullptr);
        FAIL("nothing was thrown");
      } catch (const MachineError& error) {
        CHECK_THAT(error.what(), Catch::Contains("cudaErrorUnknown"));
      }
    }
    emulator::reset();
  }
}

TEST_CASE(
    "CUDA emulated: a GPU without the memory says how much there is, before anything starts") {
  const Workbench bench(test::folder_for_many_runs());
  emulator::Machine machine;
  machine.memory_bytes = 1 << 20;
  emulator::set_machine(machine);
  CHECK_THROWS_WITH(Training(small(bench, "resident", 5)),
                    Catch::Contains("GPU memory") && Catch::Contains("free"));
  machine.driver = false;
  emulator::set_machine(machine);
  CHECK_THROWS_WITH(Training(small(bench, "resident", 5)), Catch::Contains("InsufficientDriver"));
  emulator::reset();
}

}  // namespace
}  // namespace spillway
#endif
