#include "policies/schedule/fit_margin.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/units.hpp"

namespace spillway {

TierUses tier_uses(const Schedule& schedule) {
  TierUses uses;
  for (std::size_t tier = 0; tier < uses.size(); ++tier)
    uses[tier] = schedule.use(static_cast<Tier>(tier));
  return uses;
}

std::int64_t free_bytes(const TierUse& use) {
  const std::int64_t needed = static_cast<std::int64_t>(use.peak_bytes);
  const std::int64_t left = static_cast<std::int64_t>(use.capacity_bytes) - needed;
  return left < 0 ? left : left + static_cast<std::int64_t>(use.kept_bytes);
}

std::optional<double> free_share(const TierUse& use) {
  if (use.capacity_bytes == 0) return {};
  return static_cast<double>(free_bytes(use)) / static_cast<double>(use.capacity_bytes);
}

FitMargin fit_margin(const TierUses& memory) {
  FitMargin tightest;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t t = 0; t < memory.size(); ++t) {
    const std::int64_t bytes = free_bytes(memory[t]);
    if (memory[t].capacity_bytes == 0 && bytes == 0) continue;  // a tier that is not there
    const std::optional<double> share = free_share(memory[t]);
    const double known = share.value_or(-std::numeric_limits<double>::max());
    if (known >= least) continue;
    least = known;
    tightest = {static_cast<Tier>(t), bytes, share};
  }
  return tightest;
}

std::string to_text(const FitMargin& margin) {
  const std::string bytes = format_bytes(std::abs(static_cast<double>(margin.bytes)));
  const char* what = margin.fits() ? "left" : "lacking";
  if (!margin.share)
    return fmt::format("{} of {} memory are {}, and there is none", bytes, to_string(margin.tier),
                       what);
  return fmt::format("{:.1f} % of {} memory is {} ({})", 100 * std::abs(*margin.share),
                     to_string(margin.tier), what, bytes);
}

}  // namespace spillway
