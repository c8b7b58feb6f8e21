#include "sim/to_trace.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;

TEST_CASE("A trace has one span per task, with the task's fields and times") {
  Tasks tasks(small_problem(round_machine()));
  tasks.program.at(0, Phase::backward);
  const TaskId copy = tasks.h2d(40960);
  const TaskId adam = tasks.optimizer(Tier::host, 2048);
  const Schedule schedule = tasks.finish();
  const SimulationResult result = simulate(schedule);
  const Trace trace = to_trace(schedule, result);
  REQUIRE(trace.spans.size() == 2);
  const Span& span = trace.spans[copy];
  CHECK(span.task == copy);
  CHECK(trace.lanes[span.lane] == "pcie.h2d");
  CHECK(trace.kinds[span.kind] == "h2d");
  CHECK(trace.phases[span.phase] == "backward");
  CHECK(span.segment == 0);
  CHECK(span.bytes == 40960);
  CHECK(span.start_ns == 0);
  CHECK(span.end_ns == 4096);
  CHECK(trace.spans[adam].params == 2048);
  CHECK(trace.kinds[trace.spans[adam].kind] == "optimizer");
}

TEST_CASE("Memory counters: persistent throughout, transient from first start to last end") {
  // A host buffer of 40960 B lives throughout. It is copied to the GPU in 40960 / 10 GB/s = 4096 ns
  // and back in 40960 / 5 GB/s = 8192 ns: the GPU's buffer lives from 0 to 12288 ns.
  Problem problem = small_problem(round_machine());
  Program program(problem);
  program.at(0, Phase::forward);
  const Slice host = program.persistent(Tier::host, 40960, BufferKind::scratch);
  const Slice gpu = program.buffer(Tier::gpu, 40960, BufferKind::scratch);
  program.copy(host, gpu);
  program.copy(gpu, host);
  const Schedule schedule = std::move(program).finish("by hand", 1);
  const Trace trace = to_trace(schedule, simulate(schedule));
  std::vector<std::pair<std::int64_t, std::uint64_t>> on_gpu, on_host;
  for (const MemorySample& sample : trace.memory) {
    if (trace.tiers[sample.tier] == "gpu") on_gpu.emplace_back(sample.time_ns, sample.bytes);
    if (trace.tiers[sample.tier] == "host") on_host.emplace_back(sample.time_ns, sample.bytes);
  }
  CHECK(on_gpu == std::vector<std::pair<std::int64_t, std::uint64_t>>{{0, 40960}, {12288, 0}});
  CHECK(on_host == std::vector<std::pair<std::int64_t, std::uint64_t>>{{0, 40960}});
}

TEST_CASE("Memory samples of a real schedule are in order of time and within the planned peak") {
  Problem problem = small_problem(round_machine());
  problem.workload.micro_batch = 1;
  const Schedule schedule = build_schedule(problem, "zero-infinity", 2);
  const Trace trace = to_trace(schedule, simulate(schedule));
  std::int64_t last = 0;
  for (const MemorySample& sample : trace.memory) {
    REQUIRE(sample.time_ns >= last);
    last = sample.time_ns;
    REQUIRE(sample.bytes <= schedule.use(static_cast<Tier>(sample.tier)).peak_bytes);
  }
  CHECK(trace.memory.size() > 10);
}

TEST_CASE("A buffer that takes bytes of another one before that is done with the rest has them") {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-2ssd", {"host.memory=400GB", "ssd.count=4"});
  problem.workload = {16, 2, 1024, Precision::bf16, GradientWidth::automatic};
  const Schedule schedule =
      build_schedule(problem,
                     "spillway:order.snake=on,order.delayed=0,parameters.rest=host:1,"
                     "optimizer_state.rest=host:0.658+ssd:0.342,checkpoints.rest=host:1",
                     3);
  const Trace trace = to_trace(schedule, simulate(schedule));
  std::uint64_t most = 0;
  const std::uint64_t planned = schedule.use(Tier::host).peak_bytes;
  for (const MemorySample& sample : trace.memory) {
    if (static_cast<Tier>(sample.tier) == Tier::host) most = std::max(most, sample.bytes);
  }
  CHECK(most <= planned);
  CHECK(most > planned / 100 * 99);
}

TEST_CASE("Of what is live every byte counts once, whichever buffer was made first") {
  Problem problem;
  problem.model = load_model("gpt-6b");
  problem.machine = load_machine("rtx4090-2ssd");
  problem.workload = {8, 2, 1024, Precision::bf16, GradientWidth::automatic};
  // The embedding's two gradients are made together, and used apart.
  const Schedule schedule = build_schedule(
      problem,
      "spillway:order.snake=on,order.delayed=0,parameters.rest=ssd:1,optimizer_state.rest=ssd:1,"
      "checkpoints.rest=ssd:1,gradients.head_waits=host",
      2);
  const SimulationResult result = simulate(schedule);
  const Trace trace = to_trace(schedule, result);
  // The bytes of all buffers between their first task and their last, those of two once.
  const auto live_at = [&](std::int64_t time_ns) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;
    for (const BufferInfo& one : schedule.buffers()) {
      if (one.tier != Tier::host || one.bytes == 0) continue;
      const bool is_live = one.persistent || (one.first_use != none &&
                                              result.tasks[one.first_use].start_ns <= time_ns &&
                                              result.tasks[one.last_use].end_ns > time_ns);
      if (is_live) runs.emplace_back(one.offset, one.offset + one.bytes);
    }
    std::sort(runs.begin(), runs.end());
    std::uint64_t bytes = 0, end = 0;
    for (const auto& [from, to] : runs) {
      bytes += to - std::min(to, std::max(from, end));
      end = std::max(end, to);
    }
    return bytes;
  };
  int samples = 0;
  for (const MemorySample& sample : trace.memory) {
    if (static_cast<Tier>(sample.tier) != Tier::host || ++samples % 7 != 0) continue;
    const std::uint64_t live = live_at(sample.time_ns);
    REQUIRE(sample.bytes <= live);
    REQUIRE(static_cast<double>(sample.bytes) >= 0.97 * static_cast<double>(live));
  }
  CHECK(samples > 100);
}
