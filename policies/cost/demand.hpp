// Resources of a machine, and how work draws on them while it runs.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace spillway {

struct Resource {
  std::string name;
  double capacity = 0;  // units per second; infinity: never limits
};

struct Usage {
  std::uint32_t resource = 0;
  double per_unit = 0;  // units of the resource taken by one unit of work
};

// How an activity draws on resources while it works. Many activities share one demand.
struct Demand {
  double rate_cap = std::numeric_limits<double>::infinity();  // units of work per second
  double weight = 1;                                          // > 0
  std::uint32_t usage_count = 0;                              // usages.size(); uses() keeps it
  std::vector<Usage> usages;                                  // each resource once

  // Any number of resources. Zero is left out; using a resource again adds to what it takes.
  Demand& uses(std::uint32_t resource, double per_unit);
};

// The rate of an activity of this demand that is alone: min(cap, min over r of capacity / usage).
double full_rate(std::span<const Resource> resources, const Demand& demand);

}  // namespace spillway
