// Collectives beside compute: what overlaps, what waits, and how links are shared.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "policies/common/policy.hpp"
#include "policies/cost/collectives.hpp"
#include "policies/machine/rank_share.hpp"
#include "sim/simulate.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// Six layers of GPT-2 on two nodes of two GPUs; a step's compute takes several times what its
// collectives take.
Problem two_nodes(int micro_batches) {
  Problem problem = with_rates(tiny_problem(6, micro_batches));
  problem.model = load_model("gpt2-124m", {"layers=6"});
  problem.machine.gpu.flops = 20e12;
  problem.machine.gpu.multiprocessors = 0;
  problem.machine.cluster.nodes = problem.machine.cluster.gpus = 2;
  problem.machine.cluster.nvlink = 200e9;
  problem.machine.cluster.nic = 50e9;
  problem.machine = rank_share(problem.machine, 2);
  problem.workload.sequence = 1024;
  problem.workload.micro_batch = 4;
  problem.workload.ranks = 4;
  problem.workload.batch = 4 * 4 * micro_batches;
  problem.workload.gradient = GradientWidth::bits32;
  return problem;
}

double step_seconds(const Problem& problem, const std::string& policy) {
  return simulate(build_schedule(problem, policy, 6)).step_seconds;
}

// Seconds of the schedule in which tasks of the lane run while the GPU computes; updates apart, of
// which one spreads while the next runs.
double beside_compute(const Problem& problem, const std::string& policy, Lane lane) {
  const Schedule schedule = build_schedule(problem, policy, 4);
  const SimulationResult result = simulate(schedule);
  std::int64_t ns = 0;
  for (std::size_t a = 0; a < schedule.tasks().size(); ++a) {
    if (schedule.tasks()[a].lane != lane) continue;
    for (std::size_t b = 0; b < schedule.tasks().size(); ++b) {
      if (schedule.tasks()[b].lane != Lane::gpu_compute) continue;
      if (schedule.tasks()[b].kind == TaskKind::optimizer) continue;
      const SimulatedTask &one = result.tasks[a], &other = result.tasks[b];
      ns += std::max<std::int64_t>(
          0, std::min(one.end_ns, other.end_ns) - std::max(one.start_ns, other.start_ns));
    }
  }
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

TEST_CASE("What does not overlap has the GPU wait, what does runs beside its compute") {
  const Problem problem = two_nodes(2);
  struct Row {
    Lane lane;
    const char* policy;
    const char* overlap;
  };
  for (const Row& row : {Row{Lane::ranks_gather, "zero", "gather"},
                         Row{Lane::ranks_reduce, "zero:stage=2", "reduce"},
                         Row{Lane::ranks_spread, "zero:stage=1", "spread"}}) {
    INFO(row.policy << " " << row.overlap);
    const std::string text = row.policy;
    const std::string joined = text + (text.find(':') == std::string::npos ? ":" : ",");
    CHECK(beside_compute(problem, joined + "overlap=none", row.lane) == 0);
    CHECK(beside_compute(problem, joined + "overlap=" + row.overlap, row.lane) > 0);
    CHECK(step_seconds(problem, joined + "overlap=none") >
          step_seconds(problem, joined + "overlap=" + row.overlap));
  }
}

TEST_CASE("AMSP without overlap takes as much longer as its collectives take") {
  Problem problem = two_nodes(1);
  problem.machine.gpu.adam_params_per_second = 1e15;  // updates take no time
  problem.machine.gpu.launch_ns = 0;
  const Machine::Cluster& cluster = problem.machine.cluster;
  const auto elements = [&](int unit) {
    return static_cast<std::uint64_t>(unit_elements(problem.model, unit));
  };
  // Every unit's gradient over all ranks, that of the tied embedding twice, and its parameters in
  // the node.
  double reduce = 0, spread = 0;
  for (int unit = 0; unit <= 6; ++unit) {
    const double times = unit == 6 ? 2 : 1;
    reduce += times * collective_seconds(cluster, TaskKind::all_reduce, shard_group({2, 2}),
                                         4 * elements(unit), cluster.nvlink, cluster.nic);
    spread += collective_seconds(cluster, TaskKind::all_gather, shard_group({2, 1}),
                                 2 * elements(unit), cluster.nvlink, cluster.nic);
  }
  const std::string amsp = "amsp:parameters=1x1,gradients=1x1,optimizer_state=2x1,overlap=";
  const double none = step_seconds(problem, amsp + "none");
  const double reduced = step_seconds(problem, amsp + "reduce");
  const double both = step_seconds(problem, amsp + "reduce+spread");
  // Hidden, but for what is reduced after the last layer's backward.
  const double tail =
      collective_seconds(cluster, TaskKind::all_reduce, shard_group({2, 2}),
                         4 * (elements(0) + elements(6)), cluster.nvlink, cluster.nic);
  CHECK(none - reduced == Approx(reduce - tail).epsilon(0.05));
  // Hidden, but for the embedding's parameters, which the next forward begins with.
  const double first = collective_seconds(cluster, TaskKind::all_gather, shard_group({2, 1}),
                                          2 * elements(6), cluster.nvlink, cluster.nic);
  // What memory bounds in a layer takes time of its own, under which a little more is hidden.
  CHECK(reduced - both == Approx(spread - first).epsilon(0.15));
}

TEST_CASE("Gathers and reductions that run at once share the network") {
  // With next to no compute a step takes what all its bytes take on the cards, in whatever order.
  Problem problem = two_nodes(2);
  problem.machine.gpu.flops = 1e18;
  problem.machine.gpu.memory_bandwidth = 1e18;
  problem.machine.gpu.adam_params_per_second = 1e18;
  problem.machine.gpu.launch_ns = 0;
  const Schedule schedule = build_schedule(problem, "zero", 6);
  const SimulationResult result = simulate(schedule);
  double bytes = 0;
  for (const Task& task : schedule.tasks()) {
    if (task.step != 3 || !is_collective(task.kind)) continue;
    // (p - 1)/p of the whole by each of four ranks, half of it over half of the cards.
    bytes += static_cast<double>(task.bytes) * 3 / 4 / 2;
  }
  CHECK(result.step_seconds == Approx(bytes / 25e9).epsilon(0.02));
  CHECK(result.bound_by == "nic");
}
