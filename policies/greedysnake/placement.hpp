// What policy greedysnake puts on the SSD where its settings leave that open.
#pragma once

#include <optional>
#include <vector>

#include "policies/common/policy.hpp"

namespace spillway {

// Settings that may be auto: empty where they are.
struct GreedySnakeShares {
  std::optional<double> alpha, optimizer_ssd, checkpoints_ssd, parameters_ssd, gradients_gpu;
};

// As little on the SSD as fits host memory: what costs least traffic per byte it frees goes first,
// optimizer state, then checkpoints, then parameters. An alpha that is open is the model's.
std::vector<PolicyOptions> least_placements(const Problem& problem, const GreedySnakeShares& given);

// What the paper's performance model chooses for this memory, then for less and less of it: it
// counts memory by the buffers of the authors' program, and the schedule has others.
std::vector<PolicyOptions> modelled_placements(const Problem& problem,
                                               const GreedySnakeShares& given);

}  // namespace spillway
