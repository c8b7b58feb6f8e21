// Where the model states rest: every unit in pieces, each alike in every respect.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/movement/activations.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

// A run of a unit's elements whose parameters rest in one memory, whose optimizer state rests in
// one memory, and which one update takes.
struct Piece {
  std::uint64_t first = 0, elements = 0;
  Tier parameters_at = Tier::host, state_at = Tier::host;
  bool delayed = false;     // its update takes the gradient of the step before
  Slice parameters, state;  // at rest
  Slice waiting;            // delayed: where in host memory its gradient waits for the next step
  Slice fresh_parameters, fresh_state;  // in host memory, of what rests on the SSD; else invalid
  bool updates_on_gpu = false;
  // Of what rests on the SSD until the update: there, and in host memory.
  Slice gradient_on_ssd, head_on_ssd, fresh_gradient, fresh_head;
  std::uint64_t end() const { return first + elements; }
};
using Pieces = std::vector<Piece>;

// Cuts every unit along the updates of `work` and the shares of `plan`, and gives every piece its
// homes. By unit.
//
// A gradient that is applied in the next step waits where host memory is dead until then: under the
// inputs of the layer above, whose backward is over and which are made anew later, then under the
// delayed parameters of the layer above, which the update after this one will write. What neither
// holds has memory of its own. (GreedySnake, arXiv 2512.17570, and its first author's public code.)
std::vector<Pieces> place_model_states(Program& program, const Plan& plan, const OrderOfWork& work,
                                       const Activations& activations);

}  // namespace spillway
