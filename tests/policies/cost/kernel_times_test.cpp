#include "policies/cost/kernel_times.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "policies/model/operators.hpp"
#include "policies/schedule/caches.hpp"
#include "policies/schedule/program.hpp"
#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Task compute(TaskKind kind, double flops) {
  Task task;
  task.kind = kind;
  task.lane = Lane::gpu_compute;
  task.flops = flops;
  return task;
}

KernelTime kernel(const std::string& kind, const std::string& shape, double flops,
                  std::int64_t median_ns) {
  KernelTime time;
  time.kind = kind;
  time.shape = shape;
  time.flops = flops;
  time.median_ns = median_ns;
  return time;
}

}  // namespace

TEST_CASE("A kernel measured at the task's exact shape gives its median") {
  Problem problem = small_problem(cpu_machine(2));
  const Task task = compute(TaskKind::forward, 1e9);
  problem.machine.kernels = {kernel("backward", kernel_shape(problem, task), 1e9, 1),
                             kernel("forward", kernel_shape(problem, task), 1e9, 12345678),
                             kernel("forward", "another shape", 1e9, 2)};
  const KernelEstimate estimate = KernelTimes(problem).estimate(task);
  CHECK(estimate.seconds == Approx(0.012345678));
  CHECK_FALSE(estimate.extrapolated);
}

TEST_CASE(
    "A shape that was not measured is extrapolated by FLOP rate from the nearest of its kind") {
  // Of kind forward: 1e8 FLOPs at 1e8 / 2 ms = 50 GFLOP/s, 1e10 at 100 GFLOP/s. 4e9 is nearer (by
  // ratio) to 1e10: 4e9 / 100e9 = 40 ms. The backward kernel, though nearer still, is of another
  // kind.
  Problem problem = small_problem(cpu_machine(2));
  problem.machine.kernels = {kernel("forward", "small", 1e8, 2000000),
                             kernel("forward", "large", 1e10, 100000000),
                             kernel("backward", "same", 4e9, 1)};
  const KernelEstimate estimate = KernelTimes(problem).estimate(compute(TaskKind::forward, 4e9));
  CHECK(estimate.seconds == Approx(0.040));
  CHECK(estimate.extrapolated);
}

TEST_CASE("A kind that was not measured takes the nearest kernel of any kind, then gpu.flops") {
  Problem problem = small_problem(cpu_machine(2));
  problem.machine.kernels = {kernel("backward", "b", 2e9, 40000000)};  // 50 GFLOP/s
  CHECK(KernelTimes(problem).estimate(compute(TaskKind::head, 1e9)).seconds == Approx(0.020));
  problem.machine.kernels.clear();  // gpu.flops is 100 GFLOP/s
  CHECK(KernelTimes(problem).estimate(compute(TaskKind::head, 1e9)).seconds == Approx(0.010));
  problem.machine.gpu.flops = 0;
  CHECK_THROWS_AS(KernelTimes(problem).estimate(compute(TaskKind::head, 1e9)), InputError);
}

TEST_CASE("What has no FLOPs is extrapolated by the bytes it touches") {
  Problem problem = small_problem(cpu_machine(2));
  Task task = compute(TaskKind::embed_forward, 0);
  task.bytes = 1000000;
  problem.machine.gpu.memory_bandwidth = 0;
  problem.machine.host.bandwidth = 1e9;
  CHECK(KernelTimes(problem).estimate(task).seconds == Approx(0.001));
  CHECK(KernelTimes(problem).estimate(task).extrapolated);
}

TEST_CASE("Tasks that differ in what they recompute are looked up apart") {
  Problem problem = small_problem(cpu_machine(2));
  Task recomputes = compute(TaskKind::backward, 3e9);
  Task has_all = compute(TaskKind::backward, 2e9);
  has_all.available = gpt_saved::all;
  problem.machine.kernels = {kernel("backward", kernel_shape(problem, recomputes), 3e9, 30),
                             kernel("backward", kernel_shape(problem, has_all), 2e9, 20)};
  KernelTimes times(problem);
  CHECK(times.estimate(recomputes).seconds == Approx(30e-9));
  CHECK(times.estimate(has_all).seconds == Approx(20e-9));
  CHECK(times.estimate(recomputes).seconds == Approx(30e-9));
}

TEST_CASE("A backward in two passes takes what a whole one does, unless the second was measured") {
  Problem problem = small_problem(cpu_machine(2));
  const SavedMask everything = saved_all(problem.model);
  Task all = compute(TaskKind::backward, backward_flops(problem, everything, false));
  Task nothing = compute(TaskKind::backward, backward_flops(problem, saved_none, false));
  all.available = everything;
  problem.machine.kernels = {
      kernel("backward", kernel_shape(problem, all), all.flops, 20'000'000),
      kernel("backward", kernel_shape(problem, nothing), nothing.flops, 32'000'000)};
  const auto seconds = [&](TaskKind kind, SavedMask available, double flops) {
    Task task = compute(kind, flops);
    task.available = available;
    return KernelTimes(problem).estimate(task).seconds;
  };
  const double flops = weight_gradient_flops(problem);
  const auto weights = [&] { return seconds(TaskKind::weight_gradient, saved_none, flops); };
  const auto input = [&](SavedMask available) {
    return seconds(TaskKind::input_gradient, available,
                   input_gradient_flops(problem, available, false));
  };
  CHECK(weights() == Approx(0.020 * flops / all.flops));
  CHECK(input(everything) + weights() == Approx(0.020));
  CHECK(input(saved_none) + weights() == Approx(0.032));
  Task measured = compute(TaskKind::weight_gradient, flops);
  problem.machine.kernels.push_back(
      kernel("weight_gradient", kernel_shape(problem, measured), flops, 9'000'000));
  CHECK(weights() == Approx(0.009));
  CHECK(input(everything) == Approx(0.011));
  // A machine of rates alone.
  problem.machine.kernels.clear();
  CHECK(input(everything) + weights() == Approx(all.flops / problem.machine.gpu.flops));
}

TEST_CASE("A layer that keeps some of its tensors lies between the ones that keep all and none") {
  Problem problem = small_problem(cpu_machine(2));
  Task all = compute(TaskKind::backward, 2e9);
  const Task nothing = compute(TaskKind::backward, 3e9);
  all.available = gpt_saved::all;
  problem.machine.kernels = {kernel("backward", kernel_shape(problem, all), 2e9, 20'000'000),
                             kernel("backward", kernel_shape(problem, nothing), 3e9, 32'000'000)};
  // 20 ms and the share of the recomputation's 12 ms whose FLOPs are left.
  Task some = nothing;
  some.available = gpt_saved::qkv | gpt_saved::fc;
  const double left =
      recompute_flops(problem, some.available, false) / recompute_flops(problem, saved_none, false);
  REQUIRE(left > 0);
  REQUIRE(left < 1);
  KernelTimes times(problem);
  CHECK(times.estimate(some).seconds == Approx(0.020 + 0.012 * left));
  CHECK_FALSE(times.estimate(some).extrapolated);
  // With one end missing there is nothing to lie between.
  problem.machine.kernels.pop_back();
  CHECK(KernelTimes(problem).estimate(some).extrapolated);
  // Forward: by the bytes it saves.
  Task keeps = compute(TaskKind::forward, 1e9), saves = keeps;
  saves.saves = gpt_saved::all;
  problem.machine.kernels = {kernel("forward", kernel_shape(problem, keeps), 1e9, 10'000'000),
                             kernel("forward", kernel_shape(problem, saves), 1e9, 14'000'000)};
  Task part = keeps;
  part.saves = gpt_saved::fc;
  const double share = static_cast<double>(saved_bytes(problem, gpt_saved::fc)) /
                       static_cast<double>(saved_bytes(problem, gpt_saved::all));
  CHECK(KernelTimes(problem).estimate(part).seconds == Approx(0.010 + 0.004 * share));
}

TEST_CASE("What recomputation costs is told by the groups of tensors, if each was measured alone") {
  // All there: 20 ms. Without one group 21, 22, ... ms, so the groups cost 1, 2, 3, ... ms, 28 ms
  // together; without any of them 20 + 56 ms, twice as much. Without the third and the last group
  // then 20 + 2 (3 + 7) ms.
  Problem problem = small_problem(cpu_machine(2));
  Task all = compute(TaskKind::backward, 2e9), nothing = compute(TaskKind::backward, 3e9);
  all.available = gpt_saved::all;
  auto& kernels = problem.machine.kernels;
  kernels = {kernel("backward", kernel_shape(problem, all), 2e9, 20'000'000),
             kernel("backward", kernel_shape(problem, nothing), 3e9, 76'000'000)};
  std::int64_t milliseconds = 20;
  for (const SavedMask group : recompute_groups(problem.model)) {
    Task one = all;
    one.available = static_cast<SavedMask>(gpt_saved::all & ~group);
    kernels.push_back(
        kernel("backward", kernel_shape(problem, one), 2.5e9, ++milliseconds * 1'000'000));
  }
  REQUIRE(milliseconds == 27);
  Task some = all;
  some.available = static_cast<SavedMask>(
      gpt_saved::all & ~((gpt_saved::attention | gpt_saved::statistics) | gpt_saved::gelu));
  CHECK(KernelTimes(problem).estimate(some).seconds == Approx(0.040));
  // A group of two tensors is one kernel: it runs where either is missing.
  some.available =
      static_cast<SavedMask>(gpt_saved::all & ~(gpt_saved::attention | gpt_saved::gelu));
  CHECK(KernelTimes(problem).estimate(some).seconds == Approx(0.040));
  CHECK_FALSE(KernelTimes(problem).estimate(some).extrapolated);
  // One group not measured: by FLOPs, of which GELU has none.
  kernels.pop_back();
  some.available = static_cast<SavedMask>(gpt_saved::all & ~gpt_saved::gelu);
  CHECK(KernelTimes(problem).estimate(some).seconds == Approx(0.020));
}

TEST_CASE("Norms are timed by the rate of their lane, of the largest gradient measured there") {
  Problem problem = small_problem(cpu_machine(2));
  problem.machine.gpu.is_cpu = false;
  problem.machine.kernels = {
      kernel("gradient_norm", gradient_norm_shape(Lane::gpu_compute, 1000), 0, 100),
      kernel("gradient_norm", gradient_norm_shape(Lane::gpu_compute, 8000), 0, 200),
      kernel("gradient_norm", gradient_norm_shape(Lane::cpu_optimizer, 8000), 0, 1000)};
  CHECK(KernelTimes(problem).gradient_norm_rate(Lane::gpu_compute) == Approx(8000 / 200e-9));
  CHECK(KernelTimes(problem).gradient_norm_rate(Lane::cpu_optimizer) == Approx(8000 / 1000e-9));
  // Of the CPU backend both lanes are the same cores, measured once; a GPU is not.
  problem.machine.kernels = {kernel("gradient_norm", gradient_norm_shape(), 0, 1 << 20)};
  CHECK(KernelTimes(problem).gradient_norm_rate(Lane::cpu_optimizer) == Approx(4e9));
  CHECK(KernelTimes(problem).gradient_norm_rate(Lane::gpu_compute) == 0);
  problem.machine.gpu.is_cpu = true;
  CHECK(KernelTimes(problem).gradient_norm_rate(Lane::gpu_compute) == Approx(4e9));
}

TEST_CASE(
    "A layer on a GPU that works on groups of sequences takes what the groups take together") {
  // 2 of 4 sequences at once: twice the time of a micro-batch of 2, which was measured.
  Problem problem = small_problem(cpu_machine(2));
  problem.workload.precision = Precision::bf16;
  problem.workload.batch = 8;
  problem.workload.micro_batch = 4;
  Problem two = problem;
  two.workload.micro_batch = two.workload.sequences_at_once = 2;
  const Task task = compute(TaskKind::forward, 1e9);
  problem.machine.gpu.is_cpu = false;
  problem.machine.kernels = {kernel("forward", kernel_shape(two, task), 5e8, 3'000'000),
                             kernel("forward", "whole", 1e9, 5'000'000)};
  problem.workload.sequences_at_once = 2;
  CHECK(KernelTimes(problem).estimate(task).seconds == Approx(0.006));
  CHECK_FALSE(KernelTimes(problem).estimate(task).extrapolated);
  // Groups of 1 were not measured: nearest in FLOPs.
  problem.workload.sequences_at_once = 1;
  CHECK(KernelTimes(problem).estimate(task).seconds == Approx(0.005));
  CHECK(KernelTimes(problem).estimate(task).extrapolated);
}

TEST_CASE("Between operands in no cache and all of them in caches lies what is in part") {
  Problem problem = small_problem(cpu_machine(2));
  Task task = compute(TaskKind::forward, 1e9), saves = task;
  saves.saves = saved_all(problem.model);
  const auto in_caches = [&](const Task& of, std::int64_t ns) {
    return kernel("forward", kernel_shape(problem, of) + in_caches_suffix, 1e9, ns);
  };
  problem.machine.kernels = {kernel("forward", kernel_shape(problem, task), 1e9, 14'000'000),
                             in_caches(task, 7'000'000),
                             kernel("forward", kernel_shape(problem, saves), 1e9, 21'000'000),
                             in_caches(saves, 28'000'000)};
  const auto seconds = [&](Task of, int sevenths) {
    of.in_caches = static_cast<std::uint8_t>(sevenths) & 7;
    return KernelTimes(problem).estimate(of).seconds;
  };
  CHECK(seconds(task, 0) == Approx(0.014));
  CHECK(seconds(task, 2) == Approx(0.012));
  CHECK(seconds(task, all_in_caches) == Approx(0.007));
  CHECK(seconds(saves, all_in_caches) == Approx(0.021));  // slower by chance
  // Another shape is extrapolated from kernels on operands in no cache.
  problem.machine.kernels[0].shape = "another";
  problem.machine.kernels[2].median_ns = 0;
  std::swap(problem.machine.kernels[0], problem.machine.kernels[1]);
  CHECK(seconds(task, 0) == Approx(0.014));
  CHECK(seconds(compute(TaskKind::backward, 1e9), 0) == Approx(0.014));
}

TEST_CASE("For a bound every kernel is as fast as on operands in caches") {
  const auto fastest = with_operands_in_caches(
      {kernel("forward", "a", 1, 10), kernel("forward", std::string("a") + in_caches_suffix, 1, 8),
       kernel("backward", "a", 1, 10), kernel("backward", "b", 1, 10),
       kernel("backward", std::string("b") + in_caches_suffix, 1, 12)});
  CHECK(fastest[0].median_ns == 8);
  CHECK(fastest[2].median_ns == 10);
  CHECK(fastest[3].median_ns == 10);
}
