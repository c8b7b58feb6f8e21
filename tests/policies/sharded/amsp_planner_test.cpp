// AMSP's cost model and equations 1 to 7 (arXiv 2311.00257) against numbers worked out by hand, and
// its planner against brute force.
#include "policies/sharded/amsp_planner.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>
#include <tuple>

#include "policies/common/policy.hpp"
#include "policies/machine/rank_share.hpp"

using namespace spillway;

namespace {

// LLaMA of `model` on `nodes` of AMSP's test bed, 1024 sequences of 4096 tokens a step.
Problem amsp_problem(const std::string& model, int nodes) {
  Problem problem;
  problem.model = load_model(model, {"positions=4096"});
  problem.machine = rank_share(load_machine("a800-cluster"), 8);
  problem.workload.ranks = 8 * nodes;
  problem.workload.batch = 1024;
  problem.workload.micro_batch = 1;
  problem.workload.sequence = 4096;
  return problem;
}

AmspSettings reserving(double gigabytes) {
  AmspSettings settings;
  settings.reserve = gigabytes * 1e9;
  return settings;
}

}  // namespace

TEST_CASE("T_comm of a case worked out by hand") {
  // One node of eight GPUs, 200 GB/s each way, no latency. 2 Phi = 1 GB would be round; with the
  // model's Phi instead everything is in units of x = 2 Phi / 200 GB/s.
  Problem problem = amsp_problem("llama-7b", 1);
  problem.machine.cluster.nvlink = 200e9;
  problem.machine.cluster.nvlink_latency_ns = 0;
  const double x = 2 * static_cast<double>(problem.model.parameters()) / 200e9;
  const double M = 128;
  // Parameters and gradients whole, optimizer state in eighths:
  //   T_p = T_g = 0; T_os0 = t(AR, 2 Phi, 8x1) = 2 * 7/8 x; T_os1 = 8 t(BC, 2 Phi / 8, 8x1) = x
  const AmspCost split_state = amsp_cost(problem, {{1, 1}, {1, 1}, {8, 1}}, {});
  CHECK(split_state.parameters == 0);
  CHECK(split_state.gradients == 0);
  CHECK(split_state.sync == Approx(1.75 * x));
  CHECK(split_state.spread == Approx(x));
  CHECK(split_state.seconds() == Approx(2.75 * x));
  // Everything in eighths: T_p = M (2 + 1) 7/8 x, nothing else.
  const AmspCost all = amsp_cost(problem, {{8, 1}, {8, 1}, {8, 1}}, {});
  CHECK(all.parameters == Approx(M * 3 * 7 / 8 * x));
  CHECK(all.seconds() == Approx(all.parameters));
  // Parameters in halves, gradients and state in eighths, s_g / s_p = 4:
  //   T_p = M 3 1/2 x; T_g = (M - 1) t(AR, Phi, 4x1) = (M - 1) 2 * 3/4 x/2
  //   T_os0 = t(AR, Phi, 4x1); T_os1 = 4 t(BC, 2 Phi / 8, 4x1) = x/2
  const AmspCost mixed = amsp_cost(problem, {{2, 1}, {8, 1}, {8, 1}}, {});
  CHECK(mixed.parameters == Approx(M * 1.5 * x));
  CHECK(mixed.gradients == Approx((M - 1) * 0.75 * x));
  CHECK(mixed.sync == Approx(0.75 * x));
  CHECK(mixed.spread == Approx(0.5 * x));
}

TEST_CASE("Latency counts once a module, once a bucket, once a broadcast") {
  Problem problem = amsp_problem("llama-7b", 1);
  const double phi = static_cast<double>(problem.model.parameters());
  problem.machine.cluster.nvlink = 1e18;  // bytes take no time
  problem.machine.cluster.nvlink_latency_ns = 1000;
  const double step = 1e-6;
  AmspSettings settings;
  const AmspCost cost = amsp_cost(problem, {{2, 1}, {2, 1}, {8, 1}}, settings);
  CHECK(cost.parameters == Approx(128 * 32 * 7 * 3 * 1 * step).epsilon(1e-3));
  CHECK(cost.sync == Approx(2 * phi / settings.bucket / 2 * 2 * 3 * step).epsilon(1e-3));
  CHECK(cost.spread == Approx(4 * 3 * step).epsilon(1e-3));
}

TEST_CASE("D_total: LLaMA-7B takes 112 GB of model states, as the paper says") {
  Problem problem = amsp_problem("llama-7b", 4);
  const double phi = static_cast<double>(problem.model.parameters());
  const double activations = 34.0 * 4096 * 4096 * 32;
  const auto bytes = [&](const AmspMeshes& meshes) { return amsp_bytes(problem, meshes, {}); };
  CHECK(bytes({{1, 1}, {1, 1}, {1, 1}}) == Approx(16 * phi + activations));
  CHECK(16 * phi == Approx(112e9).epsilon(0.05));  // of "7B"
  CHECK(bytes({{1, 1}, {1, 1}, {8, 1}}) == Approx((4 + 12.0 / 8) * phi + activations));
  CHECK(bytes({{2, 1}, {8, 1}, {8, 4}}) ==
        Approx((2.0 / 2 + 2.0 / 8 + 12.0 / 32) * phi + activations));
  AmspSettings recomputing = reserving(5);
  recomputing.recomputes = true;
  CHECK(amsp_bytes(problem, {{8, 4}, {8, 4}, {8, 4}}, recomputing) ==
        Approx(16 * phi / 32 + 2.0 * 4096 * 4096 * 32 + 34.0 * 4096 * 4096 + 5e9));
}

TEST_CASE("Equations 3 to 7: all meshes that they allow, and no others") {
  for (const Ranks ranks : {Ranks{8, 1}, Ranks{8, 4}, Ranks{4, 6}, Ranks{1, 3}}) {
    // Every six numbers, one by one.
    std::set<std::tuple<int, int, int, int, int, int>> allowed;
    for (int p0 = 1; p0 <= ranks.inside; ++p0)
      for (int p1 = 1; p1 <= ranks.across; ++p1)
        for (int g0 = p0; g0 <= ranks.inside; ++g0)
          for (int g1 = p1; g1 <= ranks.across; ++g1)
            for (int o0 = g0; o0 <= ranks.inside; ++o0)
              for (int o1 = g1; o1 <= ranks.across; ++o1) {
                const auto fine = [&](int s0, int s1) {
                  return ranks.inside % s0 == 0 && ranks.across % s1 == 0 &&
                         (s1 == 1 || s0 == ranks.inside);
                };
                const bool g_is_one = (g0 == p0 && g1 == p1) || (g0 == o0 && g1 == o1);
                // Shards are shards of shards.
                const bool nests = o0 % p0 == 0 && o1 % p1 == 0;
                if (fine(p0, p1) && fine(g0, g1) && fine(o0, o1) && g_is_one && nests)
                  allowed.insert({p0, p1, g0, g1, o0, o1});
              }
    std::set<std::tuple<int, int, int, int, int, int>> found;
    for (const AmspMeshes& one : amsp_meshes(ranks))
      found.insert({one.parameters.inside, one.parameters.across, one.gradients.inside,
                    one.gradients.across, one.optimizer_state.inside, one.optimizer_state.across});
    CHECK(found == allowed);
    CHECK(found.size() == amsp_meshes(ranks).size());
  }
}

TEST_CASE("The planner's first is the least of all that fit") {
  for (const char* model : {"llama-7b", "llama-13b"}) {
    for (const double reserve : {0.0, 10.0, 30.0}) {
      const Problem problem = amsp_problem(model, 4);
      const AmspSettings settings = reserving(reserve);
      double least = 1e300;
      for (const AmspMeshes& meshes : amsp_meshes(problem.ranks())) {
        if (amsp_bytes(problem, meshes, settings) <=
            static_cast<double>(problem.machine.gpu.memory))
          least = std::min(least, amsp_cost(problem, meshes, settings).seconds());
      }
      const std::vector<AmspPlan> plans = amsp_plans(problem, settings);
      REQUIRE_FALSE(plans.empty());
      CHECK(plans.front().cost.seconds() == least);
      for (std::size_t k = 1; k < plans.size(); ++k)
        CHECK(plans[k - 1].cost.seconds() <= plans[k].cost.seconds());
    }
  }
}

TEST_CASE("LLaMA-7B on four nodes: Table IV's meshes for some reserves, others for less") {
  const AmspMeshes table_iv{{1, 1}, {1, 1}, {8, 1}};
  const Problem problem = amsp_problem("llama-7b", 4);
  const auto first = [&](double reserve) {
    return amsp_plans(problem, reserving(reserve)).front().meshes;
  };
  // What is not sharded costs nothing: state in fewer shards, as far as 84 GB go.
  CHECK(first(0) == AmspMeshes{{1, 1}, {1, 1}, {4, 1}});
  CHECK(first(25) == table_iv);
}

TEST_CASE("Policy amsp takes the planner's first that fits, and what is given stays") {
  Problem problem = amsp_problem("llama-7b", 1);
  problem.workload.batch = 16;
  problem.model.layers = 2;
  const Schedule schedule = build_schedule(problem, "amsp", 2);
  REQUIRE(schedule.fits());
  // Two layers fit whole: no shards, no gathers.
  CHECK(schedule.policy() == "amsp:parameters=1x1,gradients=1x1,optimizer_state=1x1");
  const Schedule given = build_schedule(problem, "amsp:optimizer_state=8x1", 2);
  CHECK(given.policy() == "amsp:parameters=1x1,gradients=1x1,optimizer_state=8x1");
  // In less memory, more shards.
  Problem tight = problem;
  tight.machine.gpu.memory = schedule.use(Tier::gpu).peak_bytes - 1;
  const Schedule sharded = build_schedule(tight, "amsp", 2);
  CHECK(sharded.fits());
  CHECK(sharded.policy() != schedule.policy());
}
