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
//
// Three things keep it fast. Demands that share no resource, not even through others, do not affect
// each other: they form components, and only those in which something changed are solved again.
// Within a component a solution costs what its running demands cost, not what its idle demands and
// resources do. And a component of a few demands remembers the solutions for mixes of running
// activities that it has seen. Sums go over demands in the order of their index, so the rates are a
// function of what runs, whatever the order in which it came and went.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/cost/demand.hpp"

namespace spillway {

// Throws InputError for a negative or NaN quantity, an unknown resource, or a demand whose full
// rate is unlimited.
void check_demands(std::span<const Resource> resources, std::span<const Demand> demands);

class FairSharing {
 public:
  // Copies what it needs. `can_saturate`, by resource: whether it is ever asked for more than its
  // capacity; those that are not are not looked at again (empty: any may be). Checks the demands.
  FairSharing(std::span<const Resource> resources, std::span<const Demand> demands,
              std::span<const char> can_saturate = {});

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
  // False: always runs at its full rate, for nothing that it uses can saturate.
  bool can_be_slowed(std::uint32_t demand) const { return states_[demand].component != alone; }
  // The demands whose rate is another since the last solve.
  std::span<const std::uint32_t> changed_rates() const { return changed_rates_; }

  // How often demands were looked at while solving: the work done so far.
  std::uint64_t demands_visited() const { return demands_visited_; }
  std::size_t memory_bytes() const;

 private:
  static constexpr std::uint32_t alone = 0xffffffff;

  // A mix: four bits per demand of a component say how many of it run.
  static constexpr std::size_t mix_demands = 16, remembered_mixes = 256;
  static constexpr std::uint32_t mix_most = 15, solutions_before_remembering = 32;

  struct State {
    double full_rate = 0;
    double rate = 0;
    double weight = 1;
    std::uint32_t running = 0;
    std::uint32_t solved_running = 0;  // at the last solve
    std::uint32_t component = alone;
    std::uint32_t place = 0;  // among the demands of its component
    bool active = false;      // in its component's list
  };
  struct Component {
    std::vector<std::uint32_t> demands;  // ascending
    std::vector<std::uint32_t> active;   // those that ran when last solved, ascending
    bool stale = false;
    std::uint64_t mix = 0;        // up to mix_most of each; kept up to mix_demands
    std::uint32_t crowded = 0;    // demands of which more run than mix can tell
    std::uint32_t solutions = 0;  // so far
    // A table by hash: the mix, 0 where there is none, and the rate of each demand.
    std::vector<std::uint64_t> mixes;
    std::vector<double> rates;

    bool has_mix() const { return demands.size() <= mix_demands && crowded == 0; }
  };

  void keep_limiting_usages(std::span<const Resource> resources, std::span<const Demand> demands,
                            std::span<const char> can_saturate);
  void find_components(std::size_t resource_count);
  std::span<const Usage> usages(std::uint32_t demand) const {
    return {usages_.data() + usage_offsets_[demand],
            usage_offsets_[demand + 1] - usage_offsets_[demand]};
  }
  void count(std::uint32_t demand, std::uint32_t running);
  void count_in_mix(const State& state, std::uint32_t running);
  bool recall(const Component& component);
  void remember(Component& component);
  void update_active(Component& component);
  void solve(const Component& component);
  bool find_tight(const Component& component);
  double next_level();
  void freeze(double level);
  void settle(std::uint32_t demand, double rate);
  void set_rate(std::uint32_t demand, double rate);

  std::vector<State> states_;                 // by demand
  std::vector<std::uint32_t> usage_offsets_;  // demands + 1, into usages_
  std::vector<Usage> usages_;                 // of resources that can saturate
  std::vector<double> capacity_;              // by resource
  std::vector<Component> components_;
  std::vector<std::uint32_t> touched_;  // demands whose count changed since the last solve
  std::uint32_t changed_demands_ = 0;   // how many have another count than at the last solve
  std::vector<std::uint32_t> stale_;    // components to solve
  std::vector<std::uint32_t> changed_rates_;
  std::uint64_t demands_visited_ = 0;
  // Scratch of solve(): by resource, and lists of resources and demands.
  std::vector<double> left_, slope_;  // capacity not given out yet; use per lambda of the rising
  std::vector<char> mark_;            // see find_tight and freeze
  std::vector<std::uint32_t> used_, tight_;  // resources in use; those that can saturate now
  std::vector<std::uint32_t> rising_;        // demands whose rate is not fixed yet
};

}  // namespace spillway
