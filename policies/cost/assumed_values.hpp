// What of a machine is assumed, and the range that each such value may have: for asking how far a
// prediction rests on it.
//
// A value is assumed where the machine file leaves it out, or where its source says so. A zero that
// has a source of its own is known to be zero. The ranges, with their sources, are in
// docs/machine-files.md, too; those that the file assumes itself, and of which no more is known,
// have assumed_margin on either side.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "policies/cost/costs.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {

// Of rates that a file's author assumed. Products of large matrices reach 0.80 (H100) to 0.97 (RTX
// 4090) of the peak on data sheets, PCIe 0.79 to 0.89 of its own, and four fifths of either is what
// machine files assume (machines/parts): measured rates are within a fifth of that.
inline constexpr double assumed_margin = 0.2;

struct AssumedValue {
  std::vector<std::string> keys;  // that are one assumption: "pcie.pageable_h2d", "..._d2h"
  std::string value;              // in effect, for people: "as pinned"
  std::string why;                // what its source says, or "left out"
  // Both ends of its range, and where that is from. Empty where it is the time of no task: memory
  // that is set aside, of which another size is another plan; how much is written to a drive in its
  // life; the size of its write cache.
  std::string low, high, range_source;
  std::function<void(Machine&)> set_low = {}, set_high = {};
  // Bits: the works (costs.hpp) whose time it can move; 0: any.
  std::uint32_t works = 0;

  bool moves_time() const { return set_low != nullptr; }
  // "pcie.pageable_h2d and pcie.pageable_d2h"
  std::string name() const;
};

// In the order of the keys in docs/machine-files.md. Only values that matter on such a machine:
// none of drives where there are none, of collectives where there is one GPU, of kernels' shapes
// where kernels were measured.
std::vector<AssumedValue> assumed_values(const Machine& machine);

}  // namespace spillway
