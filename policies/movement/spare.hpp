// Memory that a plan leaves over, put to use.
#pragma once

#include "policies/movement/plan.hpp"
#include "policies/schedule/buffer_planner.hpp"

namespace spillway {

// `plan` with Retention::nearest and `spare` bytes of GPU and host memory beyond what it needs: on
// the GPU stays what is used soonest; in host memory rests what would rest on the SSD, parameters
// first, which are read most often, then optimizer state. Of what is used in every step in the same
// order a fixed part stays: what is used furthest in the future is always what was used last.
struct PlanWithSpare {
  Plan plan;
  std::uint64_t kept_in_host = 0;  // bytes that would rest on the SSD
};
PlanWithSpare with_spare(const Problem& problem, Plan plan, const TierBytes& spare);

}  // namespace spillway
