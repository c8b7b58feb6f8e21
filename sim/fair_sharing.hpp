// Who gets how much of what: weighted max-min fair sharing of resources among running activities.
//
// An activity that demands d works at rate y_d (units of its work per second). All activities of
// one demand run at the same rate; n_d of them are running. The rates satisfy
//
//   for every resource r:   sum over d of  n_d * usage_dr * y_d  <=  capacity_r
//   for every demand d:     y_d <= full rate_d = min(cap_d, min over r of capacity_r / usage_dr)
//
// and are found by water-filling: every y_d = weight_d * lambda rises with lambda until a resource
// saturates (all that use it stop there) or a demand reaches its full rate (it stops there); the
// rest rises on. It is the bounded max-min model of SimGrid (Casanova et al., "Versatile, scalable,
// and accurate simulation of distributed applications and platforms", JPDC 2014).
#pragma once

#include <array>
#include <cstddef>
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

inline constexpr std::size_t max_usages = 4;

// How an activity draws on resources while it works. Many activities share one demand.
struct Demand {
  double rate_cap = std::numeric_limits<double>::infinity();  // units of work per second
  double weight = 1;                                          // > 0
  std::uint32_t usage_count = 0;
  std::array<Usage, max_usages> usages{};

  Demand& uses(std::uint32_t resource, double per_unit);  // at most max_usages; zero is left out
};

class FairSharing {
 public:
  // Keeps references to both. Throws InputError for a negative or NaN quantity, an unknown
  // resource, or a demand whose full rate is unlimited.
  FairSharing(std::span<const Resource> resources, std::span<const Demand> demands);

  // One more / one fewer activity of this demand is running.
  void join(std::uint32_t demand);
  void leave(std::uint32_t demand);

  // Do the rates date from before the running activities changed?
  bool stale() const { return changed_demands_ > 0; }
  void solve();

  // Units of work per second of each running activity of this demand, by the last solve.
  double rate(std::uint32_t demand) const { return states_[demand].rate; }
  // The rate of an activity that is alone.
  double full_rate(std::uint32_t demand) const { return states_[demand].full_rate; }

 private:
  struct State {
    double full_rate = 0;
    double rate = 0;
    std::uint32_t running = 0;
    std::int32_t change = 0;     // running minus running at the last solve
    std::uint32_t position = 0;  // in active_, while running > 0
  };
  void count_change(std::uint32_t demand, std::int32_t by);
  bool find_overloaded();
  double next_level();
  void freeze(double level);
  void settle(std::uint32_t demand, double rate);

  std::span<const Resource> resources_;
  std::span<const Demand> demands_;
  std::vector<State> states_;           // by demand
  std::vector<std::uint32_t> active_;   // demands with running > 0
  std::vector<std::uint32_t> changed_;  // demands whose change was or is not 0
  std::uint32_t changed_demands_ = 0;   // how many it is now not 0 for
  // Scratch of solve(), by resource.
  std::vector<char> overloaded_;  // would be exceeded if everything ran at full rate
  std::vector<double> left_,
      slope_;  // capacity not yet given out; use per unit of lambda of the rising
  std::vector<std::uint32_t> rising_;  // demands whose rate is not fixed yet
};

}  // namespace spillway
