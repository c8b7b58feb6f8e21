// Memory that a plan leaves over, put to use.
#pragma once

#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/schedule/buffer_planner.hpp"

namespace spillway {

// `plan` with `spare` bytes of GPU and host memory beyond what it needs, for the kinds of tensor
// that its retention lets stay. On the GPU stays what is used soonest. In host memory rests part of
// what would rest on the SSD, where most bytes of reading and writing are saved for each byte of
// memory: first parameters, which every turn of their layer reads and an update writes; then
// optimizer state, which is read once and written once in a step; then activations, which are too,
// at most, for some of them stay on the GPU. Of what every step uses in the same order a fixed part
// stays: what is used furthest in the future is always what was used last.
struct PlanWithSpare {
  Plan plan;
  std::uint64_t kept_in_host = 0;  // bytes that would rest on the SSD
};
PlanWithSpare with_spare(const Problem& problem, Plan plan, const OrderOfWork& work,
                         const TierBytes& spare);

}  // namespace spillway
