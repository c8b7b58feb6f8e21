// Which kernels are timed, and what memory that takes: known without a device.
#include "experiments/calibrate/kernel_bench.hpp"

#include <catch2/catch.hpp>

#include "policies/common/policy.hpp"
#include "policies/machine/machine.hpp"
#include "policies/model/scratch.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {
namespace {

Problem problem_with(GradientWidth gradient, std::int64_t micro_batch = 2) {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.workload.batch = problem.workload.micro_batch = micro_batch;
  problem.workload.sequence = 16;
  problem.workload.precision = Precision::bf16;
  problem.workload.gradient = gradient;
  return problem;
}

TEST_CASE("Kernels of 16-bit gradients are timed as those of the only micro-batch: overwriting") {
  std::set<std::string> known;
  const auto makes_gradients = [](const Task& task) {
    return task.kind == TaskKind::head || task.kind == TaskKind::backward ||
           task.kind == TaskKind::embed_backward;
  };
  // Of several micro-batches, all but one add to a sum.
  const auto wide = stream_kernel_tasks(problem_with(GradientWidth::bits32), known);
  CHECK_FALSE(wide.empty());
  for (const Task& task : wide) CHECK_FALSE(task.first_micro_batch);
  const auto narrow = stream_kernel_tasks(problem_with(GradientWidth::bits16), known);
  CHECK_FALSE(narrow.empty());
  for (const Task& task : narrow) {
    INFO(to_string(task.kind));
    CHECK(makes_gradients(task));  // the others are known from before
    CHECK(task.first_micro_batch);
  }
  known.clear();
  for (const Task& task : stream_kernel_tasks(problem_with(GradientWidth::bits16), known)) {
    INFO(to_string(task.kind));
    CHECK(task.first_micro_batch == makes_gradients(task));
  }
}

TEST_CASE("Memory to time kernels in: two layers with all they keep, and more") {
  const Problem problem = problem_with(GradientWidth::bits32);
  const StreamKernelMemory memory = stream_kernel_memory(problem);
  const auto layer = static_cast<std::uint64_t>(unit_elements(problem.model, 0));
  CHECK(memory.gpu > 2 * (layer * (2 + 4) + saved_bytes(problem, gpt_saved::all)));
  CHECK(memory.host >= 2 * checkpoint_bytes(problem));
  // Activations go with the micro-batch, parameters do not.
  const StreamKernelMemory larger = stream_kernel_memory(problem_with(GradientWidth::bits32, 64));
  CHECK(larger.gpu > memory.gpu);
  CHECK(larger.gpu < 32 * memory.gpu);
}

TEST_CASE("Every kernel of a model with adapters or frozen layers is timed") {
  using Overrides = std::vector<std::string>;
  for (const Overrides& overrides :
       {Overrides{"lora_rank=4"},
        Overrides{"lora_rank=4", "lora_dropout=0.1", "lora_targets=c_attn"},
        Overrides{"frozen_layers=1"}}) {
    INFO(overrides.back());
    Problem problem;
    problem.model = load_model("gpt-tiny", overrides);
    problem.machine = load_machine("testbed");
    problem.trains_on = Backend::cpu;
    problem.workload = {4, 2, 16, Precision::fp32, GradientWidth::automatic};
    if (overrides.back() == "lora_rank=4") problem.workload.precision = Precision::bf16;
    std::set<std::pair<std::string, std::string>> timed;
    const auto ignore = [](const std::string&) {};
    const SamplingRule rule = {2, 1, 0.1, 1};
    for (const KernelTime& time : time_kernels(problem, rule, ignore, 1, true)) {
      CHECK(time.median_ns > 0);
      CHECK(timed.insert({time.kind, time.shape}).second);
    }
    CHECK(std::ssize(timed) == kernel_timings(problem, rule, true));
    int found = 0;
    for (const char* policy : {"resident", "resident:recompute=needed", "zero-offload"}) {
      const Schedule schedule = build_schedule(problem, policy, 2);
      for (const Task& task : schedule.tasks()) {
        const std::string shape = kernel_shape(schedule.problem(), task);
        if (task.lane != Lane::gpu_compute || shape.empty()) continue;
        INFO(to_string(task.kind) << " " << shape);
        CHECK(timed.count({to_string(task.kind), shape}) == 1);
        const bool is_whole_pass =
            task.kind == TaskKind::forward || task.kind == TaskKind::backward;
        CHECK(timed.count({to_string(task.kind), shape + in_caches_suffix}) == is_whole_pass);
        ++found;
      }
    }
    CHECK(found > 3 * 2 * 2 * 4);
  }
}

TEST_CASE("Samples of a rule of ten come in passes over all kernels") {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = load_machine("testbed");
  problem.trains_on = Backend::cpu;
  problem.workload = {1, 1, 16, Precision::fp32, GradientWidth::automatic};
  const SamplingRule rule = {12, 2, 1, 10};
  std::vector<std::string> told;
  const std::vector<KernelTime> times = time_kernels(
      problem, rule, [&](const std::string& what) { told.push_back(what); }, 1, true);
  for (const KernelTime& time : times) CHECK(time.samples_ns.size() == 12);
  REQUIRE(std::ssize(told) == kernel_timings(problem, rule, true));
  REQUIRE(told.size() % times.size() == 0);
  CHECK(told.size() / times.size() == 6);
  for (std::size_t i = times.size(); i < told.size(); ++i) CHECK(told[i] == told[i - times.size()]);
}

}  // namespace
}  // namespace spillway
