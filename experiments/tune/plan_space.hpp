// The space of plans that a search walks through: changes of one plan into a neighbour.
//
// A plan is of one problem: micro-batch included.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "experiments/tune/saved_levels.hpp"
#include "policies/movement/plan.hpp"

namespace spillway {

// The plan of a policy with settled options.
Plan plan_of(const Problem& problem, const std::string& policy);

// What moves need to know of a problem.
struct PlanSpace {
  explicit PlanSpace(const Problem& problem);

  int layers;
  int micro_batches;
  SavedLevels saved;
  // Bytes of a kind in all layers, and of checkpoints and what is saved in all micro-batches.
  double parameters, optimizer_state, checkpoints;
  double gradient;                // of one layer, on the GPU
  std::uint64_t parameter_bytes;  // of one element

  // Moves `bytes` of what rests in host memory to the SSD or, if negative, back: optimizer state
  // first, then checkpoints, then parameters. False where there is nothing left to move.
  bool move_to_ssd(Plan& plan, double bytes) const;
  // The next way to take less host memory with nothing left to move, at the least expense of time;
  // false: there is none.
  bool take_less_host(Plan& plan, bool gpu_has_room) const;
  // The next way to take less GPU memory, at the least expense of time; false: there is none.
  bool take_less_gpu(Plan& plan) const;
};

// With `on_ssd` rounded to a thousandth, which is finer than anything that it decides.
Share host_and_ssd(double on_ssd);
// The mean over all layers.
double fraction_on_ssd(const ByLayer<Share>& rest, int layers);
// Moves a fraction of each layer's share of host memory and SSD from the one to the other, as much
// as is there.
void set_fraction_on_ssd(ByLayer<Share>& rest, int layers, double on_ssd);

// Layers that are on the GPU, which are the highest; the others rest as the lowest one does.
int layers_on_gpu(const ByLayer<Share>& rest, int layers);
ByLayer<Share> with_layers_on_gpu(const ByLayer<Share>& rest, int layers, int count);

// A change of one field, or of a few that go together. False: it does not apply.
struct Move {
  std::string name;
  std::function<bool(const PlanSpace& space, Plan& plan)> apply;
  bool is_main = false;  // of those that gain most where anything is to be gained
};
// All moves with steps of `step` (a fraction, halved by a search as it closes in).
std::vector<Move> moves(double step);

}  // namespace spillway
