// The part of `spillway bench` that holds figures to what the machine allows.
#pragma once

#include <nlohmann/json.hpp>

#include "experiments/speed/speed_figures.hpp"

namespace spillway::cli {

// Measures the tests one after the other. Prints a row for each figure as soon as it is known,
// unless `json`. Returns all figures as an array.
nlohmann::ordered_json run_figures(const std::vector<FigureTest>& tests,
                                   const FigureOptions& options, bool json);

}  // namespace spillway::cli
