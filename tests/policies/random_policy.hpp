// A policy that makes any legal choice, from one seed: what is exact under it is exact under every
// policy there can be.
//
// Random are: where each run of each unit's parameters and optimizer state rests; the order of
// blocks and micro-batches; when bytes are fetched, sent away, copied in pieces, fetched again;
// what forward saves, where that and the blocks' inputs wait, and what is computed anew; where
// gradients are between micro-batches; when and where each run is updated, delayed into the next
// step's forward or not, and when the result goes home; barriers, pageable copies, one copy lane.
// Each seed has habits, some of them extreme (never, always), so that seeds differ in kind.
//
// What it keeps to: micro-batches are added to each gradient in ascending order (if asked to, which
// makes the sums bit-identical); each home of optimizer state is written once per step, as a whole;
// and all of it in one step before any of it in the next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "policies/common/policy.hpp"

namespace spillway::test {

struct RandomPolicyOptions {
  std::uint64_t seed = 0;
  bool ascending = true;           // gradients are summed over micro-batches in ascending order
  bool runs_forward_again = true;  // inputs of blocks may be dropped and computed anew
};

std::unique_ptr<Policy> make_random_policy(const RandomPolicyOptions& options);

}  // namespace spillway::test
