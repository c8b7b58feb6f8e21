// The least time of a schedule, which is found without simulating, against the simulated time.
#include "policies/cost/least_time.hpp"

#include <catch2/catch.hpp>

#include <algorithm>

#include "policies/common/policy.hpp"
#include "policies/machine/machine.hpp"
#include "policies/model/model.hpp"
#include "sim/simulate.hpp"

using namespace spillway;

TEST_CASE("No schedule is simulated faster than its least time, and none takes many times that") {
  for (const std::string machine : {"rtx4090-12ssd", "a100-80gb", "testbed"}) {
    for (const std::string policy :
         {"zero-offload:checkpoints=host", "zero-infinity:checkpoints=host", "fuyou",
          "fuyou:optimizer=naive", "greedysnake", "greedysnake:optimizer_ssd=1,alpha=0.5"}) {
      for (const std::int64_t micro_batch : {1, 4}) {
        INFO(machine << ", " << policy << ", micro-batches of " << micro_batch);
        Problem problem;
        problem.model = load_model("gpt2-124m");
        problem.machine = load_machine(machine);
        problem.workload.batch = 4;
        problem.workload.micro_batch = micro_batch;
        problem.workload.sequence = 128;
        // Two steps: all of both count, in the bound as in the time.
        const Schedule schedule = build_schedule(problem, policy, 2);
        std::int64_t end = 0;
        for (const SimulatedTask& task : simulate(schedule).tasks) end = std::max(end, task.end_ns);
        const double seconds = static_cast<double>(end) * 1e-9;
        const double least = least_seconds(schedule);
        CHECK(least <= seconds * (1 + 1e-6));
        CHECK(least >= seconds / 3);
      }
    }
  }
}
