// The computer as so many ranks find it that train on it at once.
#pragma once

#include "exec/ranks/rank_team.hpp"
#include "experiments/calibrate/calibrate.hpp"

namespace spillway {

// Of all ranks together: each calibrates beside the others, with what the processor, its memory and
// the drives leave it, so that the rates of what they share are those of its share. The machine has
// a GPU for each rank; rates of what is shared are the sums over the ranks, kernels, references and
// trials those of the first. How fast ranks reach each other is measured by itself, before: as a
// table of collectives by their bytes. Every rank gets the same machine. Throws as calibrate().
Machine calibrate_ranks(RankTeam& team, const CalibrationOptions& options,
                        const CalibrationProgress& progress, const CalibrationNote& note = {});

}  // namespace spillway
