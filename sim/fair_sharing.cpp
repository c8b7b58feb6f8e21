#include "sim/fair_sharing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

namespace {

// Rates this close (relative) count as equal, so that rounding cannot make a demand that just fits
// slower than its full rate.
constexpr double tolerance = 1e-12;
constexpr double infinity = std::numeric_limits<double>::infinity();

double checked_full_rate(std::span<const Resource> resources, const Demand& demand,
                         std::size_t index) {
  if (!(demand.weight > 0) || !(demand.weight < infinity) || !(demand.rate_cap >= 0)) {
    throw InputError(fmt::format("demand {}: weight {} and rate cap {} must be positive", index,
                                 demand.weight, demand.rate_cap));
  }
  double rate = demand.rate_cap;
  for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
    const Usage& usage = demand.usages[u];
    if (usage.resource >= resources.size() || !(usage.per_unit > 0) ||
        !(usage.per_unit < infinity)) {
      throw InputError(fmt::format("demand {}: bad use ({}) of resource {}", index, usage.per_unit,
                                   usage.resource));
    }
    rate = std::min(rate, resources[usage.resource].capacity / usage.per_unit);
  }
  return rate;
}

}  // namespace

Demand& Demand::uses(std::uint32_t resource, double per_unit) {
  if (per_unit == 0) return *this;
  SPILLWAY_ASSERT(usage_count < max_usages);
  usages[usage_count++] = {resource, per_unit};
  return *this;
}

FairSharing::FairSharing(std::span<const Resource> resources, std::span<const Demand> demands)
    : resources_(resources), demands_(demands), states_(demands.size()) {
  for (const Resource& resource : resources) {
    if (!(resource.capacity >= 0)) {
      throw InputError(fmt::format("resource {}: capacity {} must not be negative", resource.name,
                                   resource.capacity));
    }
  }
  for (std::size_t d = 0; d < demands.size(); ++d) {
    states_[d].full_rate = checked_full_rate(resources, demands[d], d);
    if (states_[d].full_rate == infinity) {
      throw InputError(fmt::format("demand {}: nothing limits its rate", d),
                       "give it a rate cap or a resource of finite capacity");
    }
  }
  overloaded_.resize(resources.size());
  left_.resize(resources.size());
  slope_.resize(resources.size());
  active_.reserve(demands.size());
  rising_.reserve(demands.size());
}

void FairSharing::count_change(std::uint32_t demand, std::int32_t by) {
  State& state = states_[demand];
  if (state.change == 0) {
    ++changed_demands_;
    changed_.push_back(demand);
  }
  state.change += by;
  if (state.change == 0 && --changed_demands_ == 0) changed_.clear();
}

void FairSharing::join(std::uint32_t demand) {
  State& state = states_[demand];
  if (state.running++ == 0) {
    state.position = static_cast<std::uint32_t>(active_.size());
    active_.push_back(demand);
  }
  count_change(demand, 1);
}

void FairSharing::leave(std::uint32_t demand) {
  State& state = states_[demand];
  SPILLWAY_ASSERT(state.running > 0);
  if (--state.running == 0) {
    active_[state.position] = active_.back();
    states_[active_.back()].position = state.position;
    active_.pop_back();
  }
  count_change(demand, -1);
}

// Marks the resources that all running activities at full rate would exceed: only those can ever
// saturate.
bool FairSharing::find_overloaded() {
  std::fill(left_.begin(), left_.end(), 0.0);
  for (const std::uint32_t d : active_) {
    const Demand& demand = demands_[d];
    const double units = states_[d].running * states_[d].full_rate;
    for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
      left_[demand.usages[u].resource] += units * demand.usages[u].per_unit;
    }
  }
  bool any = false;
  for (std::size_t r = 0; r < resources_.size(); ++r) {
    overloaded_[r] = left_[r] > resources_[r].capacity * (1 + tolerance);
    any = any || overloaded_[r];
  }
  return any;
}

// The lambda at which the next resource saturates.
double FairSharing::next_level() {
  std::fill(slope_.begin(), slope_.end(), 0.0);
  for (const std::uint32_t d : rising_) {
    const Demand& demand = demands_[d];
    const double per_level = states_[d].running * demand.weight;
    for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
      slope_[demand.usages[u].resource] += per_level * demand.usages[u].per_unit;
    }
  }
  double level = infinity;
  for (std::size_t r = 0; r < resources_.size(); ++r) {
    if (overloaded_[r] && slope_[r] > 0)
      level = std::min(level, std::max(left_[r], 0.0) / slope_[r]);
  }
  return level;
}

void FairSharing::settle(std::uint32_t demand, double rate) {
  const Demand& d = demands_[demand];
  State& state = states_[demand];
  state.rate = rate;
  const double units = state.running * rate;
  for (std::uint32_t u = 0; u < d.usage_count; ++u)
    left_[d.usages[u].resource] -= units * d.usages[u].per_unit;
}

// Fixes the demands that stop rising at or below `level`: first those whose own full rate is
// reached, and if there is none, those that use a resource which saturates at `level`.
void FairSharing::freeze(double level) {
  const double reached = level * (1 + tolerance);
  const auto keep_if = [&](const auto& rises_on) {
    std::size_t kept = 0;
    for (const std::uint32_t d : rising_) {
      if (rises_on(d)) rising_[kept++] = d;
    }
    const bool any_fixed = kept < rising_.size();
    rising_.resize(kept);
    return any_fixed;
  };
  const bool any_full = keep_if([&](std::uint32_t d) {
    if (states_[d].full_rate > reached * demands_[d].weight) return true;
    settle(d, states_[d].full_rate);
    return false;
  });
  if (any_full) return;
  // slope_ becomes a mark here: negative where the resource is saturated.
  for (std::size_t r = 0; r < resources_.size(); ++r) {
    if (overloaded_[r] && slope_[r] > 0 && std::max(left_[r], 0.0) / slope_[r] <= reached)
      slope_[r] = -1;
  }
  keep_if([&](std::uint32_t d) {
    const Demand& demand = demands_[d];
    for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
      if (slope_[demand.usages[u].resource] >= 0) continue;
      settle(d, demand.weight * level);
      return false;
    }
    return true;
  });
}

void FairSharing::solve() {
  for (const std::uint32_t d : changed_) states_[d].change = 0;
  changed_.clear();
  changed_demands_ = 0;
  if (!find_overloaded()) {
    for (const std::uint32_t d : active_) states_[d].rate = states_[d].full_rate;
    return;
  }
  for (std::size_t r = 0; r < resources_.size(); ++r) left_[r] = resources_[r].capacity;
  rising_.assign(active_.begin(), active_.end());
  while (!rising_.empty()) freeze(next_level());
}

}  // namespace spillway
