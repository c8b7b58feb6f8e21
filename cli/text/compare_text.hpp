// Policies side by side, as a table for people.
#pragma once

#include <string>

#include "experiments/plan/comparison.hpp"

namespace spillway::cli {

// The comparison must have a row. `problem` is what was asked about.
std::string comparison_text(const Problem& problem, const Comparison& comparison);

}  // namespace spillway::cli
