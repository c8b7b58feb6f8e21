// A policy that makes any legal choice, from one seed: what is exact under it is exact under every
// policy there can be.
//
// Random are both things that a policy says. The plan: where model states and activations rest, how
// far ahead they are fetched, what forward saves in each layer, where gradients are between
// micro-batches, what the optimizer takes at a time and where it runs. The order of work, anew in
// every step: of layers and micro-batches, of gradients of weights that come later, of updates
// (each unit is cut at random, and each part is updated soon after its gradient is complete, at the
// end of the step, or in the next step), of waits. Each seed has habits, some of them extreme
// (never, always), so that seeds differ in kind.
#pragma once

#include <cstdint>
#include <memory>

#include "policies/common/policy.hpp"

namespace spillway::test {

struct RandomPolicyOptions {
  std::uint64_t seed = 0;
  // Gradients are summed over micro-batches in ascending order, which makes sums bit-identical.
  bool ascending = true;
};

std::unique_ptr<Policy> make_random_policy(const RandomPolicyOptions& options);

}  // namespace spillway::test
