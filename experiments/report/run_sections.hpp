// What a page says of a run of `train`: how far it is, and its curves.
#pragma once

#include <vector>

#include "experiments/report/charts.hpp"
#include "experiments/report/facts.hpp"
#include "experiments/watch/run_list.hpp"

namespace spillway {

Facts facts_of(const SeenRun& run);

// Loss, throughput, step time, learning rate and norm of the gradient over the steps, those of them
// that its metrics have.
std::vector<Chart> charts_of(const RunHistory& history);

}  // namespace spillway
