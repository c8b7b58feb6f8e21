// What rests on drives is cut among their sets, so that all sets are done with their part at once.
#pragma once

#include <array>
#include <cstdint>

#include "policies/movement/plan.hpp"
#include "policies/movement/shards.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

class DriveShares {
 public:
  // In proportion to what each set does of as many bytes read as written (of drives whose speed
  // nobody knows: to their number); of one that has no room for its part (two copies of the
  // optimizer state, as commits have them, and 5 % to spare), what it has room for.
  DriveShares(const Problem& problem, const Plan& plan, const Shards& shards);

  int sets() const { return sets_; }
  double share(int set) const { return shares_[static_cast<std::size_t>(set)]; }
  // The ends of the parts of `all`, one for each set, on multiples of `grid`; the last is `all`.
  std::array<std::uint64_t, most_drive_sets> ends(std::uint64_t all, std::uint64_t grid) const;

 private:
  int sets_ = 1;
  std::array<double, most_drive_sets> shares_{1};  // their sum is 1
};

}  // namespace spillway
