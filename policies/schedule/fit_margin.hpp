// How much memory a schedule leaves in the tier where it is tightest, or lacks there.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "policies/schedule/schedule.hpp"

namespace spillway {

using TierUses = std::array<TierUse, tier_count>;  // by Tier

TierUses tier_uses(const Schedule& schedule);

// Bytes of a tier that nothing needs; below zero: that are lacking. What is kept there only because
// memory is left counts as free.
std::int64_t free_bytes(const TierUse& use);
// The same as a share of the tier; nothing of a tier that has no bytes.
std::optional<double> free_share(const TierUse& use);

// The tier with the least free share; of what does not fit, the one that lacks most.
struct FitMargin {
  Tier tier = Tier::gpu;
  std::int64_t bytes = 0;       // free; below zero: lacking
  std::optional<double> share;  // of the tier
  bool fits() const { return bytes >= 0; }
};
FitMargin fit_margin(const TierUses& memory);

// "3.1 % of host memory is left (21.60 GB)", "0.6 % of host memory is lacking (4.60 GB)"
std::string to_text(const FitMargin& margin);

}  // namespace spillway
