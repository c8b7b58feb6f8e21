#include "sim/fair_sharing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/errors.hpp"

namespace spillway {

namespace {

// Rates this close (relative) count as equal, so that rounding cannot make a demand that just fits
// slower than its full rate.
constexpr double tolerance = 1e-12;
constexpr double infinity = std::numeric_limits<double>::infinity();

// What mark_ says of a resource while a component is solved.
constexpr char unused = 0, in_use = 1, tight = 2, saturated = 3;

void check(std::span<const Resource> resources, const Demand& demand, std::size_t index) {
  if (!(demand.weight > 0) || !(demand.weight < infinity) || !(demand.rate_cap >= 0)) {
    throw InputError(fmt::format("demand {}: weight {} and rate cap {} must be positive", index,
                                 demand.weight, demand.rate_cap));
  }
  for (const Usage& usage : demand.usages) {
    if (usage.resource >= resources.size() || !(usage.per_unit > 0) ||
        !(usage.per_unit < infinity)) {
      throw InputError(fmt::format("demand {}: bad use ({}) of resource {}", index, usage.per_unit,
                                   usage.resource));
    }
  }
  if (full_rate(resources, demand) == infinity) {
    throw InputError(fmt::format("demand {}: nothing limits its rate", index),
                     "give it a rate cap or a resource of finite capacity");
  }
}

}  // namespace

void check_demands(std::span<const Resource> resources, std::span<const Demand> demands) {
  for (const Resource& resource : resources) {
    if (resource.capacity >= 0) continue;
    throw InputError(fmt::format("resource {}: capacity {} must not be negative", resource.name,
                                 resource.capacity));
  }
  for (std::size_t d = 0; d < demands.size(); ++d) check(resources, demands[d], d);
}

FairSharing::FairSharing(std::span<const Resource> resources, std::span<const Demand> demands,
                         std::span<const char> can_saturate)
    : states_(demands.size()) {
  SPILLWAY_ASSERT(can_saturate.empty() || can_saturate.size() == resources.size());
  check_demands(resources, demands);
  for (const Resource& resource : resources) capacity_.push_back(resource.capacity);
  for (std::size_t d = 0; d < demands.size(); ++d) {
    states_[d].full_rate = spillway::full_rate(resources, demands[d]);
    states_[d].weight = demands[d].weight;
  }
  keep_limiting_usages(resources, demands, can_saturate);
  find_components(resources.size());
  left_.resize(resources.size());
  slope_.resize(resources.size());
  mark_.resize(resources.size(), unused);
}

void FairSharing::keep_limiting_usages(std::span<const Resource> resources,
                                       std::span<const Demand> demands,
                                       std::span<const char> can_saturate) {
  usage_offsets_.reserve(demands.size() + 1);
  usage_offsets_.push_back(0);
  for (const Demand& demand : demands) {
    for (const Usage& usage : demand.usages) {
      const bool limits = can_saturate.empty() ? resources[usage.resource].capacity < infinity
                                               : can_saturate[usage.resource] != 0;
      if (limits) usages_.push_back(usage);
    }
    usage_offsets_.push_back(static_cast<std::uint32_t>(usages_.size()));
  }
}

// Joins the resources that some demand uses together (union-find); each set is a component.
void FairSharing::find_components(std::size_t resource_count) {
  std::vector<std::uint32_t> parent(resource_count);
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](std::uint32_t r) {
    while (parent[r] != r) r = parent[r] = parent[parent[r]];
    return r;
  };
  const auto count = static_cast<std::uint32_t>(states_.size());
  for (std::uint32_t d = 0; d < count; ++d) {
    for (const Usage& usage : usages(d)) parent[root(usage.resource)] = root(usages(d)[0].resource);
  }
  std::vector<std::uint32_t> component_of(resource_count, alone);  // by root
  for (std::uint32_t d = 0; d < count; ++d) {
    if (usages(d).empty()) {
      states_[d].rate = states_[d].full_rate;
      continue;
    }
    std::uint32_t& component = component_of[root(usages(d)[0].resource)];
    if (component == alone) {
      component = static_cast<std::uint32_t>(components_.size());
      components_.emplace_back();
    }
    states_[d].component = component;
    states_[d].place = static_cast<std::uint32_t>(components_[component].demands.size());
    components_[component].demands.push_back(d);
  }
}

void FairSharing::count(std::uint32_t demand, std::uint32_t running) {
  State& state = states_[demand];
  if (state.component == alone) {
    state.running = running;
    return;
  }
  const bool differed = state.running != state.solved_running;
  if (state.place < mix_demands) count_in_mix(state, running);
  state.running = running;
  const bool differs = running != state.solved_running;
  if (differs && !differed) {
    ++changed_demands_;
    touched_.push_back(demand);
  } else if (differed && !differs && --changed_demands_ == 0) {
    touched_.clear();
  }
}

void FairSharing::count_in_mix(const State& state, std::uint32_t running) {
  Component& component = components_[state.component];
  const auto shown = [](std::uint32_t n) -> std::uint64_t { return std::min(n, mix_most); };
  component.mix += (shown(running) - shown(state.running)) << (4 * state.place);
  component.crowded += running > mix_most;
  component.crowded -= state.running > mix_most;
}

void FairSharing::join(std::uint32_t demand) { count(demand, states_[demand].running + 1); }

void FairSharing::leave(std::uint32_t demand) {
  SPILLWAY_ASSERT(states_[demand].running > 0);
  count(demand, states_[demand].running - 1);
}

void FairSharing::solve() {
  changed_rates_.clear();
  stale_.clear();
  for (const std::uint32_t d : touched_) {
    State& state = states_[d];
    if (state.running == state.solved_running) continue;  // touched twice, or changed back
    state.solved_running = state.running;
    Component& component = components_[state.component];
    if (state.running > 0 && !state.active) {
      state.active = true;
      component.active.push_back(d);
    }
    if (component.stale) continue;
    component.stale = true;
    stale_.push_back(state.component);
  }
  touched_.clear();
  changed_demands_ = 0;
  for (const std::uint32_t c : stale_) {
    Component& component = components_[c];
    component.stale = false;
    if (recall(component)) continue;
    update_active(component);
    solve(component);
    remember(component);
  }
}

namespace {

// Spreads the bits of a mix over a table of 256.
std::size_t slot_of(std::uint64_t mix) { return (mix * 0x9e3779b97f4a7c15U) >> 56; }

}  // namespace

bool FairSharing::recall(const Component& component) {
  if (component.mixes.empty() || !component.has_mix()) return false;
  const std::size_t slot = slot_of(component.mix);
  if (component.mixes[slot] != component.mix) return false;
  const double* rates = component.rates.data() + slot * component.demands.size();
  for (std::uint64_t left = component.mix; left != 0;) {
    const auto place = static_cast<std::size_t>(std::countr_zero(left)) / 4;
    set_rate(component.demands[place], rates[place]);
    left &= ~(std::uint64_t{15} << (4 * place));
    ++demands_visited_;
  }
  return true;
}

void FairSharing::remember(Component& component) {
  const std::size_t demands = component.demands.size();
  if (demands < 2 || !component.has_mix() || component.mix == 0) return;
  if (component.mixes.empty()) {
    if (++component.solutions < solutions_before_remembering) return;
    component.mixes.resize(remembered_mixes, 0);
    component.rates.resize(remembered_mixes * demands);
  }
  const std::size_t slot = slot_of(component.mix);
  component.mixes[slot] = component.mix;
  for (const std::uint32_t d : component.active)
    component.rates[slot * demands + states_[d].place] = states_[d].rate;
}

void FairSharing::update_active(Component& component) {
  std::vector<std::uint32_t>& active = component.active;
  std::erase_if(active, [&](std::uint32_t d) {
    states_[d].active = states_[d].running > 0;
    return !states_[d].active;
  });
  if (!std::is_sorted(active.begin(), active.end())) std::sort(active.begin(), active.end());
  demands_visited_ += active.size();
}

void FairSharing::solve(const Component& component) {
  if (find_tight(component)) {
    rising_.clear();
    for (const std::uint32_t d : component.active) {
      const auto list = usages(d);
      const bool limited = std::any_of(list.begin(), list.end(), [&](const Usage& usage) {
        return mark_[usage.resource] == tight;
      });
      if (limited) {
        rising_.push_back(d);
      } else {
        set_rate(d, states_[d].full_rate);
      }
    }
    while (!rising_.empty()) freeze(next_level());
  } else {
    for (const std::uint32_t d : component.active) set_rate(d, states_[d].full_rate);
  }
  for (const std::uint32_t r : used_) mark_[r] = unused;
}

// Finds the resources that all running activities at full rate would exceed: only those can
// saturate. Returns whether there are any.
bool FairSharing::find_tight(const Component& component) {
  used_.clear();
  tight_.clear();
  for (const std::uint32_t d : component.active) {
    const double units = states_[d].running * states_[d].full_rate;
    for (const Usage& usage : usages(d)) {
      if (mark_[usage.resource] == unused) {
        mark_[usage.resource] = in_use;
        used_.push_back(usage.resource);
        left_[usage.resource] = slope_[usage.resource] = 0;
      }
      left_[usage.resource] += units * usage.per_unit;
    }
  }
  for (const std::uint32_t r : used_) {
    if (left_[r] <= capacity_[r] * (1 + tolerance)) continue;
    mark_[r] = tight;
    tight_.push_back(r);
    left_[r] = capacity_[r];
  }
  return !tight_.empty();
}

// The lambda at which the next resource saturates.
double FairSharing::next_level() {
  for (const std::uint32_t r : tight_) slope_[r] = 0;
  demands_visited_ += rising_.size();
  for (const std::uint32_t d : rising_) {
    const double per_level = states_[d].running * states_[d].weight;
    for (const Usage& usage : usages(d)) slope_[usage.resource] += per_level * usage.per_unit;
  }
  double level = infinity;
  for (const std::uint32_t r : tight_) {
    if (slope_[r] > 0) level = std::min(level, std::max(left_[r], 0.0) / slope_[r]);
  }
  return level;
}

void FairSharing::set_rate(std::uint32_t demand, double rate) {
  if (states_[demand].rate == rate) return;
  states_[demand].rate = rate;
  changed_rates_.push_back(demand);
}

void FairSharing::settle(std::uint32_t demand, double rate) {
  set_rate(demand, rate);
  const double units = states_[demand].running * rate;
  for (const Usage& usage : usages(demand)) left_[usage.resource] -= units * usage.per_unit;
}

// Fixes the demands that stop rising at or below `level`: first those whose own full rate is
// reached, and if there is none, those that use a resource which saturates at `level`.
void FairSharing::freeze(double level) {
  const double reached = level * (1 + tolerance);
  const auto full = [&](std::uint32_t d) {
    if (states_[d].full_rate > reached * states_[d].weight) return false;
    settle(d, states_[d].full_rate);
    return true;
  };
  if (std::erase_if(rising_, full) > 0) return;
  std::erase_if(tight_, [&](std::uint32_t r) {
    if (slope_[r] > 0 && std::max(left_[r], 0.0) / slope_[r] > reached) return false;
    mark_[r] = saturated;  // or nothing that rises uses it
    return true;
  });
  std::erase_if(rising_, [&](std::uint32_t d) {
    const auto list = usages(d);
    const bool held = std::any_of(list.begin(), list.end(), [&](const Usage& usage) {
      return mark_[usage.resource] == saturated;
    });
    if (held) settle(d, states_[d].weight * level);
    return held;
  });
}

std::size_t FairSharing::memory_bytes() const {
  std::size_t bytes =
      states_.capacity() * sizeof(State) + usages_.capacity() * sizeof(Usage) +
      components_.capacity() * sizeof(Component) +
      (capacity_.capacity() + left_.capacity() + slope_.capacity()) * sizeof(double) +
      mark_.capacity();
  for (const auto* list :
       {&usage_offsets_, &touched_, &stale_, &changed_rates_, &used_, &tight_, &rising_}) {
    bytes += list->capacity() * sizeof(std::uint32_t);
  }
  for (const Component& component : components_) {
    bytes += (component.active.capacity() + component.demands.capacity()) * sizeof(std::uint32_t) +
             component.mixes.capacity() * sizeof(std::uint64_t) +
             component.rates.capacity() * sizeof(double);
  }
  return bytes;
}

}  // namespace spillway
