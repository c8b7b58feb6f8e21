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

}  // namespace spillway
