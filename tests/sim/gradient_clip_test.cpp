// What clipping costs: norms that are taken, and updates that wait for them.
#include <catch2/catch.hpp>

#include "policies/model/units.hpp"
#include "sim/simulate.hpp"
#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Problem clipped(Problem problem, ClipScope scope) {
  if (scope != ClipScope::off) problem.workload.clip = {scope, 1.0};
  return problem;
}

// Seconds that the norm of block 0 takes alone, from a gradient in `tier`.
double norm_seconds(const Problem& problem, Tier tier) {
  Tasks tasks(clipped(problem, ClipScope::layer));
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(unit_elements(problem.model, 0)) * problem.gradient_bytes();
  Slice gradient = tasks.fresh(tier, bytes);
  gradient.bytes = bytes;
  tasks.program.gradient_complete(0, gradient);
  const Schedule schedule = tasks.finish();
  const SimulationResult result = simulate(schedule);
  REQUIRE(result.tasks.size() == 1);
  return static_cast<double>(result.tasks[0].end_ns) * 1e-9;
}

double step_seconds(const Problem& problem, const std::string& policy) {
  const Schedule schedule = build_schedule(problem, policy, 6);
  schedule.require_fit();
  return simulate(schedule).step_seconds;
}

Problem real_problem(const char* model, const char* machine, std::int64_t batch,
                     std::int64_t micro_batch) {
  Problem problem;
  problem.model = load_model(model);
  problem.machine = load_machine(machine);
  problem.workload.batch = batch;
  problem.workload.micro_batch = micro_batch;
  return problem;
}

}  // namespace

TEST_CASE("A norm reads its gradient as fast as AdamW passes over its bytes, or as measured") {
  Problem problem = small_problem(round_machine());
  problem.machine.gpu.launch_ns = 5000;
  problem.machine.host.adam_bytes_per_param = 20;
  const double bytes = static_cast<double>(unit_elements(problem.model, 0)) *
                       static_cast<double>(problem.gradient_bytes());
  // On the GPU 28 bytes per parameter at 1e10 parameters/s, and a launch; on the host 20 at 1e9,
  // and none. Times are whole nanoseconds.
  CHECK(norm_seconds(problem, Tier::gpu) == Approx(5e-6 + bytes / 280e9).margin(1e-9));
  CHECK(norm_seconds(problem, Tier::host) == Approx(bytes / 20e9).margin(1e-9));
  // The CPU backend, with a sample of 2^20 elements of fp32 in 1 ms: 4.194 GB/s.
  problem = small_problem(cpu_machine(4));
  KernelTime sample;
  sample.kind = "gradient_norm";
  sample.shape = gradient_norm_shape();
  sample.median_ns = 1'000'000;
  problem.machine.kernels.push_back(sample);
  const double fp32 = static_cast<double>(unit_elements(problem.model, 0)) * 4;
  for (const Tier tier : {Tier::gpu, Tier::host})
    CHECK(norm_seconds(problem, tier) == Approx(fp32 / 4.194304e9).margin(1e-9));
}

TEST_CASE("With everything on the GPU clipping costs the norms, whether by layer or in all") {
  // One lane does all the work: the step gets longer by the norms of all units, one after the
  // other, each a launch and its gradient's bytes (the embedding's twice) at the rate above.
  Problem problem = real_problem("gpt2-124m", "a100-80gb", 8, 8);
  const Machine& machine = problem.machine;
  const double rate = machine.gpu.adam_params_per_second > 0
                          ? 28 * machine.gpu.adam_params_per_second
                          : machine.gpu.memory_bandwidth;
  double norms = 0;
  for (std::int64_t unit = 0; unit <= problem.model.layers; ++unit) {
    const double bytes = static_cast<double>(unit_elements(problem.model, unit)) *
                         static_cast<double>(problem.gradient_bytes()) *
                         (unit == problem.model.layers ? 2 : 1);
    norms += static_cast<double>(machine.gpu.launch_ns) * 1e-9 + bytes / rate;
  }
  const double off = step_seconds(problem, "resident");
  const double by_layer = step_seconds(clipped(problem, ClipScope::layer), "resident");
  const double global = step_seconds(clipped(problem, ClipScope::global), "resident");
  CHECK(by_layer - off == Approx(norms).epsilon(1e-4));
  CHECK(global == Approx(by_layer).epsilon(1e-12));
}

TEST_CASE("Updates that wait for the norm cost what they no longer hide under backward") {
  // ZeRO's optimizer comes after backward anyway. Fuyou's hides under backward: by layer it still
  // does, for the whole model it takes the time it takes, as in Fuyou's serial pipeline.
  // GreedySnake's moves under the next forward, where it hides as well.
  const Problem problem = real_problem("gpt-13b", "rtx4090-12ssd", 16, 16);
  for (const char* policy : {"zero-infinity", "zero-offload", "fuyou", "greedysnake"}) {
    INFO(policy);
    const double off = step_seconds(problem, policy);
    const double by_layer = step_seconds(clipped(problem, ClipScope::layer), policy);
    const double global = step_seconds(clipped(problem, ClipScope::global), policy);
    // 13e9 gradients of 2 bytes at 1 TB/s are 26 ms; which buffer a copy waits for is more.
    CHECK(by_layer >= off - 0.1);
    CHECK(by_layer <= off + 0.1);
    if (policy == std::string("fuyou")) {
      CHECK(global > by_layer + 1);
    } else if (policy == std::string("greedysnake")) {
      CHECK(global == Approx(by_layer).epsilon(0.02));
    } else {
      CHECK(global == Approx(by_layer).epsilon(1e-9));
    }
  }
  const double serial = step_seconds(problem, "fuyou:optimizer=serial");
  CHECK(step_seconds(clipped(problem, ClipScope::global), "fuyou") <= serial + 0.05);
}
