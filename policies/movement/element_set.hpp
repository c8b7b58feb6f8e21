// Some of a unit's elements: runs of them, neighbours joined, so that a unit updated in many parts
// in a row is one run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "base/errors.hpp"

namespace spillway {

class ElementSet {
 public:
  struct Run {
    std::uint64_t from = 0, to = 0;
  };

  bool contains(std::uint64_t element) const {
    const auto run = first_ending_after(element);
    return run != runs_.end() && run->from <= element;
  }
  bool holds_any_of(std::uint64_t from, std::uint64_t to) const {
    const auto run = first_ending_after(from);
    return run != runs_.end() && run->from < to;
  }
  std::uint64_t size() const { return size_; }

  // Adds elements [from, to), none of which are in the set.
  void add(std::uint64_t from, std::uint64_t to) {
    SPILLWAY_ASSERT(from < to && !holds_any_of(from, to));
    size_ += to - from;
    const auto next = runs_.begin() + (first_ending_after(from) - runs_.cbegin());
    const bool joins_next = next != runs_.end() && next->from == to;
    const bool joins_last = next != runs_.begin() && std::prev(next)->to == from;
    if (joins_last && joins_next) {
      std::prev(next)->to = next->to;
      runs_.erase(next);
    } else if (joins_last) {
      std::prev(next)->to = to;
    } else if (joins_next) {
      next->from = from;
    } else {
      runs_.insert(next, {from, to});
    }
  }

  // What of [0, elements) is not in the set, ascending.
  std::vector<Run> missing(std::uint64_t elements) const {
    std::vector<Run> all;
    std::uint64_t done = 0;
    for (const Run& run : runs_) {
      if (run.from > done) all.push_back({done, run.from});
      done = run.to;
    }
    if (done < elements) all.push_back({done, elements});
    return all;
  }

 private:
  std::vector<Run>::const_iterator first_ending_after(std::uint64_t element) const {
    return std::partition_point(runs_.begin(), runs_.end(),
                                [&](const Run& run) { return run.to <= element; });
  }

  std::vector<Run> runs_;  // ascending, apart from one another
  std::uint64_t size_ = 0;
};

}  // namespace spillway
