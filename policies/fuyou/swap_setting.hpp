// The option `swap` of policy fuyou: which activations inside layers are swapped rather than
// recomputed, within the memory that the rest of a plan leaves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policies/cost/costs.hpp"
#include "policies/fuyou/swap_plan.hpp"
#include "policies/movement/plan.hpp"

namespace spillway {

// swap=auto | none | all | 0.5 | 60GiB
struct Swap {
  enum class Kind : std::uint8_t { automatic, none, fraction, bytes } kind = Kind::automatic;
  double amount = 0;
  bool operator==(const Swap&) const = default;
};
struct SwapDomain {
  using Value = Swap;
  bool read(const std::string& text, Swap& swap) const;
  std::string describe() const {
    return "auto, none, all, a number from 0 to 1, or a size with its unit";
  }
  std::vector<std::string> samples(int count) const {
    std::vector<std::string> all = fraction.samples(count);
    all.insert(all.end(), {"auto", "none", "all", "10KiB", "1MB", "60GiB"});
    return all;
  }
};

// Masks of what forward saves for backward; nothing with swap=none. `plan` is complete but for
// that; `overlap` says what of the optimizer runs under backward.
ByLayer<SavedMask> swapped_tensors(const Problem& problem, const Costs& costs, const Plan& plan,
                                   const Swap& swap, OptimizerOverlap overlap);

}  // namespace spillway
