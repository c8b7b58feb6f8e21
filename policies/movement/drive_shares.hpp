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
  // As fast as the sets are (speed_shares()); of one that has no room for its part (two copies of
  // the optimizer state, as commits have them, on the first set those of what rests in memory, too,
  // and 5 % to spare), what it has room for.
  DriveShares(const Problem& problem, const Plan& plan, const Shards& shards);

  int sets() const { return sets_; }
  double share(int set) const { return shares_[static_cast<std::size_t>(set)]; }
  // The ends of the parts of `all`, one for each set, on multiples of `grid`; the last is `all`.
  std::array<std::uint64_t, most_drive_sets> ends(std::uint64_t all, std::uint64_t grid) const;
  // act(set, begin, bytes) for each part of `bytes` that is not empty.
  template <class Act>
  void for_parts(std::uint64_t bytes, std::uint64_t grid, const Act& act) const {
    const auto all = ends(bytes, grid);
    std::uint64_t begin = 0;
    for (int set = 0; set < sets_; ++set) {
      const std::uint64_t end = all[static_cast<std::size_t>(set)];
      if (end > begin) act(set, begin, end - begin);
      begin = end;
    }
  }

 private:
  int sets_ = 1;
  std::array<double, most_drive_sets> shares_{1};  // their sum is 1
};

}  // namespace spillway
