// Which of several ranks has the optimizer state of which elements.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "exec/store/store_layout.hpp"

namespace spillway {

// Elements of a unit.
struct StateRange {
  std::int64_t unit = 0;
  std::uint64_t first = 0, elements = 0;
  std::uint64_t end() const { return first + elements; }
};
std::vector<StateRange> ranges_of(const std::vector<StatePart>& parts);

class StateOwners {
 public:
  // `by_rank`: what each of them has. Several may have the same.
  explicit StateOwners(const std::vector<std::vector<StateRange>>& by_rank);

  // Calls take(rank, first, count) for [first, first + count) of a unit, in ascending pieces, each
  // of a rank that has it: `preferred`, else the first. Throws MachineError where none has.
  using Take = std::function<void(int rank, std::uint64_t first, std::uint64_t count)>;
  void for_each(std::int64_t unit, std::uint64_t first, std::uint64_t count, int preferred,
                const Take& take) const;

 private:
  struct Owned {
    StateRange range;
    int rank = 0;
  };
  std::vector<Owned> all_;  // by unit, then by rank
};

}  // namespace spillway
