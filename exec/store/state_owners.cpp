#include "exec/store/state_owners.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/errors.hpp"

namespace spillway {

std::vector<StateRange> ranges_of(const std::vector<StatePart>& parts) {
  std::vector<StateRange> ranges;
  for (const StatePart& part : parts)
    ranges.push_back({part.unit, part.first_element, part.elements});
  return ranges;
}

StateOwners::StateOwners(const std::vector<std::vector<StateRange>>& by_rank) {
  std::vector<Owned> pieces;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const StateRange& range : by_rank[rank]) pieces.push_back({range, static_cast<int>(rank)});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Owned& a, const Owned& b) {
    return std::tuple(a.range.unit, a.rank, a.range.first) <
           std::tuple(b.range.unit, b.rank, b.range.first);
  });
  for (const Owned& piece : pieces) {
    const bool goes_on = !all_.empty() && all_.back().rank == piece.rank &&
                         all_.back().range.unit == piece.range.unit &&
                         all_.back().range.end() == piece.range.first;
    if (goes_on) {
      all_.back().range.elements += piece.range.elements;
    } else {
      all_.push_back(piece);
    }
  }
}

void StateOwners::for_each(std::int64_t unit, std::uint64_t first, std::uint64_t count,
                           int preferred, const Take& take) const {
  const auto begin =
      std::lower_bound(all_.begin(), all_.end(), unit,
                       [](const Owned& owned, std::int64_t of) { return owned.range.unit < of; });
  const std::uint64_t end = first + count;
  while (first < end) {
    const Owned* found = nullptr;
    for (auto one = begin; one != all_.end() && one->range.unit == unit; ++one) {
      if (first < one->range.first || first >= one->range.end()) continue;
      if (found == nullptr || one->rank == preferred) found = &*one;
    }
    if (found == nullptr)
      throw MachineError(
          fmt::format("no rank has the state of element {} of unit {}", first, unit),
          "a store of this run is damaged or another run's: restore it from a backup");
    const std::uint64_t some = std::min(end, found->range.end()) - first;
    take(found->rank, first, some);
    first += some;
  }
}

}  // namespace spillway
