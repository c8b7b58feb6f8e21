// Where the model states rest: every unit is cut into pieces, each of which has one home, one
// update and one step whose gradient it takes.
#pragma once

#include <vector>

#include "policies/movement/activations.hpp"
#include "policies/movement/drive_shares.hpp"
#include "policies/movement/pieces.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/shards.hpp"
#include "policies/movement/step.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

// Cuts every unit along the updates of `work` and the shares of `plan`, and gives every piece its
// homes. By unit. Of several ranks, pieces are what this one updates; parameters that it keeps of a
// unit beyond that lie around theirs, in one buffer.
//
// A gradient that is applied in the next step waits where host memory is dead until then: under the
// inputs of the layer above, whose backward is over and which are made anew later, then under the
// delayed parameters of the layer above, which the update after this one will write. What neither
// holds has memory of its own. (GreedySnake, arXiv 2512.17570, and its first author's public code.)
std::vector<Pieces> place_model_states(Program& program, const Plan& plan, const Shards& shards,
                                       const OrderOfWork& work, const DriveShares& drives,
                                       Activations& activations);

}  // namespace spillway
