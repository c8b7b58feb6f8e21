// The built-in policies, one factory per file in this folder; registry.cpp lists them.
#pragma once

#include <memory>

#include "policies/common/policy.hpp"

namespace spillway {

std::unique_ptr<Policy> make_resident(const PolicyOptions& options);
std::unique_ptr<Policy> make_zero_offload(const PolicyOptions& options);
std::unique_ptr<Policy> make_zero_infinity(const PolicyOptions& options);
std::unique_ptr<Policy> make_deep_optimizer_states(const PolicyOptions& options);
std::unique_ptr<Policy> make_fuyou(const PolicyOptions& options);
std::unique_ptr<Policy> make_greedysnake(const PolicyOptions& options);

}  // namespace spillway
