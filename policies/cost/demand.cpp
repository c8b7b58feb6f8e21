#include "policies/cost/demand.hpp"

#include <algorithm>

namespace spillway {

Demand& Demand::uses(std::uint32_t resource, double per_unit) {
  if (per_unit == 0) return *this;
  for (Usage& usage : usages) {
    if (usage.resource != resource) continue;
    usage.per_unit += per_unit;
    return *this;
  }
  usages.push_back({resource, per_unit});
  usage_count = static_cast<std::uint32_t>(usages.size());
  return *this;
}

double full_rate(std::span<const Resource> resources, const Demand& demand) {
  double rate = demand.rate_cap;
  for (const Usage& usage : demand.usages)
    rate = std::min(rate, resources[usage.resource].capacity / usage.per_unit);
  return rate;
}

}  // namespace spillway
