#include "policies/sharded/amsp_planner.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "policies/cost/collectives.hpp"

namespace spillway {

namespace {

// Bytes of a parameter, of its gradient, and of master weight and moments.
constexpr double parameter_width = 2, gradient_width = 2, state_width = 12;

// The time t(o, v, mesh) of a collective on bytes `v`.
class Profiler {
 public:
  explicit Profiler(const Problem& problem)
      : cluster_(problem.machine.cluster),
        inside_(cluster_.nvlink > 0
                    ? cluster_.nvlink
                    : std::min(problem.machine.pcie.h2d, problem.machine.pcie.d2h)) {}

  double operator()(TaskKind kind, double v, const RankGroup& group) const {
    return collective_seconds(cluster_, kind, group, static_cast<std::uint64_t>(std::llround(v)),
                              inside_, cluster_.nic);
  }

 private:
  const Machine::Cluster& cluster_;
  double inside_;
};

double elements_of(const Problem& problem) {
  return static_cast<double>(problem.model.parameters());
}

std::vector<Mesh> meshes_of(const Ranks& ranks) {
  std::vector<Mesh> all;
  for (int across = 1; across <= ranks.across; ++across) {
    if (ranks.across % across != 0) continue;  // equation 6
    for (int inside = 1; inside <= ranks.inside; ++inside) {
      if (ranks.inside % inside != 0) continue;            // equation 5
      if (across > 1 && inside != ranks.inside) continue;  // equation 7
      all.push_back({inside, across});
    }
  }
  return all;
}

bool within(const Mesh& inner, const Mesh& outer) {  // equations 3 and 4
  return outer.inside % inner.inside == 0 && outer.across % inner.across == 0;
}

}  // namespace

double amsp_bytes(const Problem& problem, const AmspMeshes& meshes, const AmspSettings& settings) {
  const double phi = elements_of(problem);
  const double states = parameter_width * phi / meshes.parameters.size() +
                        gradient_width * phi / meshes.gradients.size() +
                        state_width * phi / meshes.optimizer_state.size();
  const double width =
      static_cast<double>(problem.workload.micro_batch * problem.workload.sequence) *
      static_cast<double>(problem.model.hidden);
  const auto layers = static_cast<double>(problem.model.layers);
  const double activations =
      settings.recomputes ? 2 * width * layers + 34 * width : 34 * width * layers;
  return states + activations + settings.reserve;
}

AmspCost amsp_cost(const Problem& problem, const AmspMeshes& meshes, const AmspSettings& settings) {
  const Profiler t(problem);
  const double phi = elements_of(problem);
  const auto layers = static_cast<double>(problem.model.layers);
  const auto micro_batches = static_cast<double>(problem.workload.micro_batches());
  const Mesh &s_p = meshes.parameters, &s_g = meshes.gradients, &s_os = meshes.optimizer_state;
  const double kept = parameter_width * phi / s_p.size();  // 2 Phi / s_p
  const double buckets = kept / settings.bucket;
  const Ranks ranks = problem.ranks();
  AmspCost cost;
  // T_p = M L sum_i [2 t(AG, 2 Phi_i, s_p) + t(RS, 2 Phi_i, s_p)]
  if (s_p.size() > 1) {
    const double module = parameter_width * phi / layers / settings.modules;
    cost.parameters = micro_batches * layers * settings.modules *
                      (2 * t(TaskKind::all_gather, module, shard_group(s_p)) +
                       t(TaskKind::reduce_scatter, module, shard_group(s_p)));
  }
  // T_g = (M - 1) 2 Phi / (U s_p) t(AR, U, s_g / s_p)
  cost.gradients = (micro_batches - 1) * buckets *
                   t(TaskKind::all_reduce, settings.bucket, replica_group(s_g, s_p));
  // T_os0 = 2 Phi / (U s_p) t(AR, U, s_dp / s_p)
  cost.sync = buckets * t(TaskKind::all_reduce, settings.bucket, replica_group(ranks, s_p));
  // T_os1 = s_os / s_p t(BC, 2 Phi / s_os, s_os / s_p)
  cost.spread =
      static_cast<double>(s_os.size()) / s_p.size() *
      t(TaskKind::broadcast, parameter_width * phi / s_os.size(), replica_group(s_os, s_p));
  return cost;
}

std::vector<AmspMeshes> amsp_meshes(const Ranks& ranks) {
  const std::vector<Mesh> meshes = meshes_of(ranks);
  std::vector<AmspMeshes> all;
  for (const Mesh& s_p : meshes) {
    for (const Mesh& s_os : meshes) {
      if (!within(s_p, s_os)) continue;
      all.push_back({s_p, s_p, s_os});
      if (s_os != s_p) all.push_back({s_p, s_os, s_os});
    }
  }
  return all;
}

std::vector<AmspPlan> amsp_plans(const Problem& problem, const AmspSettings& settings) {
  std::vector<AmspPlan> plans;
  for (const AmspMeshes& meshes : amsp_meshes(problem.ranks())) {
    const double bytes = amsp_bytes(problem, meshes, settings);
    if (bytes > static_cast<double>(problem.machine.gpu.memory)) continue;  // equation 2
    plans.push_back({meshes, amsp_cost(problem, meshes, settings), bytes});
  }
  std::stable_sort(plans.begin(), plans.end(), [](const AmspPlan& a, const AmspPlan& b) {
    return std::tuple(a.cost.seconds(), a.bytes) < std::tuple(b.cost.seconds(), b.bytes);
  });
  return plans;
}

}  // namespace spillway
