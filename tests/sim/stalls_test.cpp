// What the GPU waited for, in schedules small enough to work out by hand.
#include "sim/stalls.hpp"

#include <catch2/catch.hpp>
#include <map>

#include "sim/explanation.hpp"
#include "tests/policies/cost/problems.hpp"
#include "tests/sim/random_problems.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// Round machine: h2d 10, d2h 5, ssd read 7, write 5 GB/s. One forward takes 2 s.
struct Example : Tasks {
  explicit Example(std::int64_t sync_ns = 0) : Tasks(problem_with(sync_ns)) {}
  static Problem problem_with(std::int64_t sync_ns) {
    Problem problem = small_problem(round_machine());
    problem.machine.gpu.flops = problem.model.layer_forward_flops(4, 128) / 2;
    problem.machine.host.sync_ns = sync_ns;
    return problem;
  }
  Slice run(Tier tier, std::uint64_t bytes, BufferKind kind) {
    return program.persistent(tier, bytes, kind);
  }
  TaskId forward_on(Slice parameters, Slice output) {
    return program.forward(0, 0, parameters, fresh(Tier::gpu, 4096), output);
  }
};

// "ssd.read parameters, data" -> milliseconds.
std::map<std::string, double> stalls_of(const Schedule& schedule) {
  const StallReport report = explain(schedule, simulate(schedule)).stalls;
  std::map<std::string, double> result;
  for (const Stall& stall : report.stalls)
    result[to_string(stall.running) + ", " + to_string(stall.wait)] =
        std::round(static_cast<double>(stall.ns) * 1e-6);
  result["busy"] = std::round(static_cast<double>(report.busy_ns) * 1e-6);
  return result;
}

using Stalls = std::map<std::string, double>;

}  // namespace

TEST_CASE("A forward that waits for a copy that waits for a read: each is charged its own time") {
  // 7 GB: read 1 s, copied to the GPU 0.7 s, forward 2 s.
  Example example;
  const Slice ssd = example.run(Tier::ssd, 7 * gigabyte, BufferKind::parameters);
  const Slice host = example.run(Tier::host, 7 * gigabyte, BufferKind::parameters);
  const Slice gpu = example.run(Tier::gpu, 7 * gigabyte, BufferKind::parameters);
  example.program.copy(ssd, host);
  example.program.copy(host, gpu);
  example.forward_on(gpu, example.fresh(Tier::gpu, 4096));
  CHECK(stalls_of(example.finish()) == Stalls{{"ssd.read parameters, data", 1000},
                                              {"pcie.h2d parameters, data", 700},
                                              {"busy", 2000}});
}

TEST_CASE("A read that is ahead on the lane is charged as such") {
  // The optimizer state is read first, 7 GB = 1 s, and nothing waits for it; then as above.
  Example example;
  example.program.copy(example.run(Tier::ssd, 7 * gigabyte, BufferKind::optimizer_state),
                       example.run(Tier::host, 7 * gigabyte, BufferKind::optimizer_state));
  const Slice ssd = example.run(Tier::ssd, 7 * gigabyte, BufferKind::parameters);
  const Slice host = example.run(Tier::host, 7 * gigabyte, BufferKind::parameters);
  const Slice gpu = example.run(Tier::gpu, 7 * gigabyte, BufferKind::parameters);
  example.program.copy(ssd, host);
  example.program.copy(host, gpu);
  example.forward_on(gpu, example.fresh(Tier::gpu, 4096));
  CHECK(stalls_of(example.finish()) == Stalls{{"ssd.read optimizer state, turn", 1000},
                                              {"ssd.read parameters, data", 1000},
                                              {"pcie.h2d parameters, data", 700},
                                              {"busy", 2000}});
}

TEST_CASE("A forward that waits until its output's place has been copied away waits for memory") {
  // Forward 2 s; its 5 GB output goes to the host, 1 s; the next forward writes there.
  Example example;
  const Slice parameters = example.fresh(Tier::gpu, 4096);
  const Slice output = example.run(Tier::gpu, 5 * gigabyte, BufferKind::checkpoint);
  example.forward_on(parameters, output);
  example.program.copy(output, example.run(Tier::host, 5 * gigabyte, BufferKind::checkpoint));
  example.forward_on(parameters, output);
  CHECK(stalls_of(example.finish()) ==
        Stalls{{"pcie.d2h checkpoint, memory", 1000}, {"busy", 4000}});
}

TEST_CASE("The host's wake-up at a barrier is charged to the barrier, what it waits for is not") {
  // A copy of 5 GB, 1 s; the barrier 0.5 s; a forward that needs neither.
  Example example(500'000'000);
  example.program.copy(example.run(Tier::gpu, 5 * gigabyte, BufferKind::gradient),
                       example.run(Tier::host, 5 * gigabyte, BufferKind::gradient));
  example.program.barrier();
  example.forward();
  CHECK(stalls_of(example.finish()) ==
        Stalls{{"pcie.d2h gradient, barrier", 1000}, {"barrier, barrier", 500}, {"busy", 2000}});
}

TEST_CASE("A barrier that takes no time hands the wait on to what it waits for") {
  Example example;
  example.program.copy(example.run(Tier::gpu, 5 * gigabyte, BufferKind::gradient),
                       example.run(Tier::host, 5 * gigabyte, BufferKind::gradient));
  example.program.barrier();
  example.forward();
  CHECK(stalls_of(example.finish()) ==
        Stalls{{"pcie.d2h gradient, barrier", 1000}, {"busy", 2000}});
}

TEST_CASE("Where no GPU task follows, the stall is what the window ends with") {
  // Forward 2 s; then 5 GB to the host, 1 s; then Adam of 1e9 parameters at 1e9/s, 1 s.
  Example example;
  const Slice gpu = example.run(Tier::gpu, 5 * gigabyte, BufferKind::gradient);
  const Slice host = example.run(Tier::host, 5 * gigabyte, BufferKind::gradient);
  example.forward_on(example.fresh(Tier::gpu, 4096), gpu);
  example.program.copy(gpu, host);
  const std::uint64_t params = 1000000000 / 2048 * 2048;
  const auto part = [&](std::uint64_t bytes) {
    return example.run(Tier::host, bytes, BufferKind::optimizer_state).part(0, bytes);
  };
  const std::uint64_t width = example.program.problem().gradient_bytes();
  example.program.optimizer(0, 0, params, host.part(0, params * width), {}, part(params * 12),
                            part(params * 2), 0);
  CHECK(stalls_of(example.finish()) ==
        Stalls{{"pcie.d2h gradient, data", 1000}, {"cpu.optimizer, end", 1000}, {"busy", 2000}});
}

TEST_CASE("Random schedules: a task starts at the very moment its cause ends") {
  for (std::uint64_t seed = 6000; seed < 6100; ++seed) {
    RandomProblems random(seed);
    const Schedule schedule = random.schedule(4);
    INFO("seed " << seed << ", " << schedule.policy());
    const SimulationResult result = simulate(schedule);
    const Causes causes(schedule, result.tasks, 0);
    bool at_once = true;
    for (TaskId task = 0; task < schedule.tasks().size(); ++task) {
      const TaskId cause = causes.of(task);
      at_once = at_once && (cause == none ? result.tasks[task].start_ns == 0
                                          : cause < task && result.tasks[task].start_ns ==
                                                                result.tasks[cause].end_ns);
    }
    CHECK(at_once);
  }
}
