// AMSP's planner: among all meshes of parameters, gradients and optimizer state, those with the
// least communication that fit in GPU memory.
//
// Source: Chen et al., AMSP, arXiv 2311.00257: its cost model and equations 1 to 7, by brute force.
// Its bandwidths w were measured and are not published; here they are those of
// policies/cost/collectives.hpp. What overlaps compute does not count less.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/workload/problem.hpp"

namespace spillway {

// s_p, s_g, s_os.
struct AmspMeshes {
  Mesh parameters, gradients, optimizer_state;
  bool operator==(const AmspMeshes&) const = default;
};

// Equation 1: seconds of communication in a step.
struct AmspCost {
  double parameters = 0;  // T_p: gathers and reductions of every micro-batch
  double gradients = 0;   // T_g: sums over the ranks between s_p and s_g, but for the last one
  double sync = 0;        // T_os0: the gradient over all ranks, once
  double spread = 0;      // T_os1: updated parameters, once
  double seconds() const { return parameters + gradients + sync + spread; }
};

struct AmspPlan {
  AmspMeshes meshes;
  AmspCost cost;
  double bytes = 0;  // of GPU memory: D_total
};

// What the paper leaves open.
struct AmspSettings {
  double reserve = 0;          // bytes, D_tmp
  double bucket = 1ull << 30;  // bytes, U (InternEvo's reduce_bucket_size, 512 Mi elements)
  int modules = 7;             // K: linear layers of a block
  bool recomputes = false;     // activations: 2 s h L + 34 s h bytes in place of 34 s h L
};

// D_total: model states of 16-bit training with Adam, activations of a micro-batch, the reserve.
double amsp_bytes(const Problem& problem, const AmspMeshes& meshes, const AmspSettings& settings);
AmspCost amsp_cost(const Problem& problem, const AmspMeshes& meshes, const AmspSettings& settings);

// All meshes that equations 3 to 7 allow, s_g being s_p or s_os.
std::vector<AmspMeshes> amsp_meshes(const Ranks& ranks);
// Those that fit (equation 2), the least communication first; of equal ones the least memory. The
// problem's machine is a rank's share.
std::vector<AmspPlan> amsp_plans(const Problem& problem, const AmspSettings& settings);

}  // namespace spillway
