// Which limit of the machine to relax first, and what that would gain.
#pragma once

#include "experiments/tune/tune.hpp"

namespace spillway {

// Prices the neighbourhood of `best` on machines that have more of one thing each.
std::vector<Relaxation> relax(const Problem& problem, const TuneOptions& options,
                              const Trial& best);

}  // namespace spillway
