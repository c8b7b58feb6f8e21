// Throughput over batches, and the smallest batch at which it is near its peak.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/questions/planner.hpp"

namespace spillway {

// The best plan at one batch.
struct BatchPoint {
  std::int64_t batch = 0, micro_batch = 0;
  std::string policy;
  double step_seconds = 0, tokens_per_second = 0;
  std::string bound_by;
};

struct SmallestBatch {
  double share = 0;               // of the peak that is asked for
  std::vector<BatchPoint> curve;  // all that were evaluated and fit, the smallest batch first
  BatchPoint peak;                // the most tokens per second; batch 0: nothing fits
  bool saturated = false;         // two doublings of the batch gained less than saturated_gain each
  BatchPoint smallest;            // the smallest batch found that reaches the share
  bool exact = true;              // every smaller one that may reach the share was evaluated
  std::optional<Candidate> plan;  // of the smallest
};

inline constexpr double saturated_gain = 0.01;

// The peak is looked for by doubling the batch until throughput no longer grows, memory is full or
// much has been evaluated.
//
// The step of a batch B that reaches `share` of the peak takes B T / (share x peak) seconds at the
// most. Let it be n micro-batches of m sequences, and N and M the largest powers of two up to n and
// m: N micro-batches of M sequences take no longer. So B need not be evaluated where for each way
// to write it as n m, the batch N M takes longer than that (and 2 % more, for what is not quite
// monotone). Among the others one that reaches the share is found by bisection; then those below it
// are evaluated, the largest first, until all or enough of them have been.
SmallestBatch smallest_batch(const Problem& problem, const Planner& planner, double share,
                             const std::function<void(const std::string&)>& say = {});

}  // namespace spillway
