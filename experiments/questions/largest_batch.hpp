// The largest batch that fits, and how fast it is trained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/questions/planner.hpp"

namespace spillway {

// No larger batches are tried than, on each rank, the largest power of two of so many tokens: no
// training of a model on one machine takes so many a step.
inline constexpr std::int64_t most_tokens_tried = 1 << 22;

struct LargestBatch {
  std::string policy;      // of the plan; where nothing fits, the planner's name
  std::int64_t batch = 0;  // sequences a step, of all ranks; 0: not one fits
  std::int64_t micro_batch = 0;
  std::int64_t largest_micro_batch = 0;  // the largest batch that is computed in one piece
  // What ends it. most_tried: not memory, up to most_micro_batches micro-batches and
  // most_tokens_tried tokens; where gradients are summed, memory often sets no limit at all.
  // most_tasks: larger ones may fit, but take too long to try.
  enum class End : std::uint8_t { memory, most_tried, most_tasks } end = End::memory;
  std::vector<Tier> full;         // tiers that are too small for one micro-batch more, or for one
  std::optional<Candidate> plan;  // of that batch at that micro-batch
};

// The micro-batch of the problem where one is set. Where memory ends it: for each micro-batch that
// several fit of, the smallest multiple of it above the answer does not fit.
LargestBatch largest_batch(const Problem& problem, const Planner& planner);

}  // namespace spillway
