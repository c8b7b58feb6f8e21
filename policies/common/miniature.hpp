// A miniature of a schedule: fewer layers, as large as the problem's, moved by the plan of all of
// them, in memories of which the other layers' share is taken. Layers repeat, so a few miniatures
// tell how long the whole schedule takes (experiments/plan/price.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "policies/common/parsed_policy.hpp"
#include "policies/common/settler.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/schedule/buffer_planner.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

// After how many layers what the plan does with a layer repeats; nothing where it depends on the
// layers before, or on how many there are. `work`: an order of work by this plan.
std::optional<int> layer_period(const Plan& plan, const OrderOfWork& work);

struct Miniatures {
  ParsedPolicy policy;    // with its open options settled
  int period = 1;         // numbers of layers should differ by multiples of it
  TierBytes per_layer{};  // what each of the other layers takes
  TierBytes live{};       // the most bytes that are live at once, in the whole schedule
};

// How to build miniatures of a policy's schedule of `steps` steps. Its open options are settled by
// what miniatures say of the memory that each takes. Nothing where miniatures do not tell: what the
// plan does depends on the number of layers, or an option is as close to a limit of memory as they
// are exact. `grounds`, if given, becomes what Settler::grounds() says, where options were settled.
std::optional<Miniatures> find_miniatures(const Problem& problem, const ParsedPolicy& policy,
                                          int steps,
                                          std::optional<Settler::Grounds>* grounds = nullptr);

Schedule build_miniature(const Problem& problem, const Miniatures& miniatures, std::int64_t layers,
                         int steps);

// The least number of layers from `at_least` on that a miniature of so many layers may have.
std::int64_t miniature_layers(std::int64_t layers, int period, std::int64_t at_least);

}  // namespace spillway
