// Where a search begins: built-in policies, and plans after the linear program of the lower bound.
#pragma once

#include <string>
#include <vector>

#include "experiments/tune/lower_bound.hpp"
#include "policies/movement/plan.hpp"

namespace spillway {

// Built-in policies as published, but for those of several ranks, which any answer is compared
// with; and with the options that may make them faster.
std::vector<std::string> published_policies();
std::vector<std::string> policy_variants();

// Plans that do what the linear program's optimum says, as far as a plan can, the likeliest first;
// `problem` has the case's micro-batch.
std::vector<Plan> seeds_of(const Problem& problem, const BoundCase& one);

}  // namespace spillway
