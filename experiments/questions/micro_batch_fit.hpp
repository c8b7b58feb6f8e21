// Whether a problem fits in micro-batches of some size.
#pragma once

#include <cstdint>
#include <optional>

#include "experiments/questions/planner.hpp"

namespace spillway {

struct MicroBatchFit {
  std::int64_t micro_batch = 0;
  // Of that size; where none fits, of the one that lacks least. Nothing: no policy can run the
  // problem, or it takes too long to say.
  std::optional<Fit> fit;
  bool cut_short = false;  // none fits, and some size was left untried that might

  bool fits() const { return fit && fit->need.fits(); }
};

// In micro-batches of the problem's size or, where the planner may choose, of every size that makes
// at most most_micro_batches of them: `first`, if it is one of these, then the largest first, which
// make the fewest tasks. It is a part of an answer by itself: Planner::begin().
MicroBatchFit fit_in_some_micro_batch(const Planner& planner, const Problem& problem,
                                      std::int64_t first = 0);

}  // namespace spillway
