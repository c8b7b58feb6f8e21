// What one simulated plan does with memory, lanes and time, in numbers that stand beside those of
// another plan.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "experiments/plan/candidates.hpp"
#include "sim/explanation.hpp"

namespace spillway {

// Bytes by tier.
using TierAmounts = std::array<std::uint64_t, tier_count>;

// Where the tensors of one kind are.
struct KindPlaces {
  BufferKind kind = BufferKind::parameters;
  // Between steps, of parameters and optimizer state, each byte in one memory; nothing for kinds
  // that do not outlive a step.
  std::optional<TierAmounts> home;
  // Most bytes that are live at once in the steady window, in each memory by itself: what rests
  // there, and what passes through.
  TierAmounts most{};
};

// What tasks of one class do in a steady step.
struct ClassWork {
  TaskClass of;
  double seconds = 0;  // that they run, added up
  double bytes = 0;    // that they move; their sum by lane is LaneUse::bytes
};

struct PlanProfile {
  Candidate plan;  // fits
  Explanation explanation;
  std::vector<KindPlaces> places;  // of the kinds that the plan has, in order of BufferKind
  std::vector<ClassWork> work;     // in order of lane, then of task kind
};

// `plan` has a result.
PlanProfile profile_of(Candidate plan);

}  // namespace spillway
