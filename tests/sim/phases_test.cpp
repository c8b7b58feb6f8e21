// Phases add up what the GPU does, also where micro-batches run forward and backward in turn.
#include <catch2/catch.hpp>

#include "policies/common/policy.hpp"
#include "sim/simulate.hpp"

using namespace spillway;

TEST_CASE(
    "several micro-batches in turn: each forward counts as forward, each backward as backward") {
  // Compute-bound: a block costs F forward and 3 F backward with full recomputation, and the head
  // belongs to backward, so forward is a little under a quarter of the two.
  Problem problem;
  problem.model = load_model("gpt-6b");
  problem.machine = load_machine("h200");
  problem.machine.gpu.flops /= 20;  // so that nothing but compute takes time
  for (const std::int64_t micro_batch : {16, 4, 2}) {
    problem.workload = {16, micro_batch, 1024, Precision::bf16, GradientWidth::automatic};
    const SimulationResult result = simulate(build_schedule(problem, "zero-offload", 4));
    INFO("micro-batch " << micro_batch);
    const double share = result.phases.forward / (result.phases.forward + result.phases.backward);
    CHECK(share > 0.22);
    CHECK(share < 0.26);
    CHECK(result.phases.forward + result.phases.backward + result.phases.optimizer ==
          Approx(result.step_seconds));
  }
}
