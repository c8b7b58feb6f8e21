// What a simulation rests on: each number of the machine with where it is from, and what was asked.
#pragma once

#include <string>
#include <vector>

#include "experiments/report/html.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

// Key, value, whether it is given, derived, extrapolated, set by hand or assumed because the file
// leaves it out, and its source.
PageTable machine_table(const Machine& machine, const std::vector<std::string>& overrides);

// Workload, framework, steps, and what was set by hand.
PageTable workload_table(const Schedule& schedule);

// Sentences about what is assumed or extrapolated; empty: nothing is. `kernels_extrapolated`:
// SimulationResult::extrapolated.
std::vector<std::string> assumption_notes(const Problem& problem, bool kernels_extrapolated);

}  // namespace spillway
