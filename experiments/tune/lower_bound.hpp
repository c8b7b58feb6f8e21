// The least time of a step that any plan can take: a lower bound over all plans of the family that
// docs/lower-bound.md describes, not the bound of one schedule. The proof is there, too.
//
// A plan takes micro-batches of one size, in groups of `row` that pass the layers together: forward
// through all layers, then backward. For each size and row a linear program says how little time a
// step can take: where model states and activations are at a few instants of a step, and what must
// cross which link between two of them. Every schedule gives values that meet its constraints, with
// its own step time; so the optimum is at most that time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/movement/plan.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// What the optimum of the linear program says, as a seed for a search: fractions of each kind of
// tensor by memory.
struct PlanShares {
  Share parameters, optimizer_state, checkpoints, saved;
  double gpu_updates = 0;  // fraction of the parameters that the GPU updates
  double delayed = 0;      // fraction of the layers' updates that wait for the next step's forward
  // Masks of saved_tensors(), and the fraction of the layers that save each.
  std::vector<std::pair<SavedMask, double>> saves;
};

struct BoundCase {
  std::int64_t micro_batch = 1;  // sequences
  int row = 0;                   // micro-batches of a layer in a row
  double seconds = 0;            // no plan with this micro-batch and row takes less time for a step
  // What binds, in the words of simulate: a lane or a resource ("gpu.compute", "ssd.time"), or "gpu
  // memory", "host memory", "ssd memory". The one whose growth by a hundredth gains most.
  std::string limit;
  PlanShares shares;
};

// All micro-batches that divide the batch and all rows for which the memory could suffice, least
// seconds first. Empty: no plan fits. Throws InputError for a wrong problem, and where nothing says
// how long the GPU computes. A rate that the machine file does not give limits nothing. Workloads
// with more than `most_rows` micro-batches have one case for all rows that make as many groups; its
// row is the smallest of them.
inline constexpr std::int64_t most_rows = 128;
std::vector<BoundCase> lower_bounds(const Problem& problem);

// The least of lower_bounds(). Throws FitError where there is none.
BoundCase lower_bound(const Problem& problem);

// The case of the problem's own micro-batch and of `row`, 1 to Workload::micro_batches(). Nothing:
// no such plan fits.
std::optional<BoundCase> lower_bound_of(const Problem& problem, int row);

}  // namespace spillway
