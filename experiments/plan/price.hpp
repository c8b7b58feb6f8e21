// The price of one policy on one problem: what evaluate() says of it in numbers, in a fraction of
// the time where that can be told without building all tasks (docs/pricing.md).
//
// Layers and micro-batches repeat. A schedule of a few layers is built in their stead, of as many
// bytes a layer, and what more layers add is told from several such schedules. They have to agree:
// wherever they do not, the whole schedule is built and simulated.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "experiments/plan/evaluate.hpp"
#include "policies/workload/durability.hpp"

namespace spillway {

struct Price {
  bool fits = false;
  std::string policy;                        // canonical, with its open options settled
  std::array<TierUse, tier_count> memory{};  // by Tier
  StoreBytes store;                          // of a training that commits
  // The rest is 0 or empty where it does not fit.
  double step_seconds = 0;
  double tokens_per_second = 0;
  double bound_seconds = 0;
  std::string bound_by;
  double ssd_bytes_written_per_step = 0;
  bool is_extrapolated = false;      // not all tasks were built
  std::uint64_t tasks = 0;           // emitted and simulated to find it
  std::uint64_t schedule_tasks = 0;  // of the whole schedule
  // All of a steady step; without the times of tasks.
  std::optional<SimulationResult> result;

  void set(SimulationResult result);
};

// Agrees with evaluate(): in `fits` always, in the step time to 0.1 %. Peaks of memory and shares
// of lanes that are told by miniatures may be some percent off (docs/pricing.md). Throws what it
// throws.
Price price(const Problem& problem, const std::string& policy, int steps = default_steps);

// Nothing where only the whole schedule tells the price.
std::optional<Price> quick_price(const Problem& problem, const std::string& policy,
                                 int steps = default_steps);
// Builds only what `reuse` does not have.
std::optional<Price> quick_price_with(ScheduleReuse& reuse, const Problem& problem,
                                      const std::string& policy, int steps = default_steps);

// The price of what was evaluated.
Price price_of(const Evaluation& evaluation);

}  // namespace spillway
