// A plan made to fit: what does not fit memory is moved by as much as the exact memory plan says is
// missing, until it does.
#pragma once

#include <cstdint>
#include <limits>

#include "experiments/tune/plan_space.hpp"
#include "experiments/tune/pricer.hpp"
#include "policies/spillway/spillway.hpp"

namespace spillway {

// A plan that was priced. `price.fits` says whether it is any good.
struct Settled {
  std::int64_t micro_batch = 1;
  Plan plan;
  TrialPrice price;

  Trial trial() const { return {micro_batch, spillway_policy(plan)}; }
  // Whether this one is better: the faster plan, of two as fast the one that writes less.
  bool better_than(const Settled& other) const;
};

// What a plan may take, if that is less than the machine has.
struct MemoryLimits {
  std::uint64_t gpu = std::numeric_limits<std::uint64_t>::max(), host = gpu;
};

// Prices `plan` and, if it does not fit, its nearest relatives that may: at most `most_prices`.
// With `fills`, host memory that is left over then takes what rests on the SSD, if that is faster.
Settled settle(Pricer& pricer, const PlanSpace& space, std::int64_t micro_batch, Plan plan,
               int most_prices, bool fills, const MemoryLimits& limits = {});

}  // namespace spillway
