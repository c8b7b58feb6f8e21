// Plans of which none is better in everything: step time, GPU memory, host memory, bytes written.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "experiments/tune/pricer.hpp"

namespace spillway {

// Whether `a` is no worse than `b` in any of the four, each of b's being `slack` times as large.
bool covers(const TrialPrice& a, const TrialPrice& b, double slack = 1);

// Of the plans that fit, those that no other covers, fastest first; of plans that differ by less
// than 5 % in everything one.
std::vector<PricedTrial> pareto_front(const std::map<Trial, TrialPrice>& known);

}  // namespace spillway
