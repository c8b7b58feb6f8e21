// The largest batch that fits, and how fast it is trained.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/questions/planner.hpp"

namespace spillway {

struct LargestBatch {
  std::string policy;      // of the plan; where nothing fits, the planner's name
  std::int64_t batch = 0;  // sequences a step; 0: not one fits
  std::int64_t micro_batch = 0;
  std::int64_t largest_micro_batch = 0;  // the largest batch that is computed in one piece
  // What ends it. most_micro_batches: memory does not, for gradients of any number of micro-batches
  // are summed where there is one.
  enum class End : std::uint8_t { memory, most_micro_batches, most_tasks } end = End::memory;
  std::vector<Tier> full;         // tiers that are too small for one micro-batch more
  std::optional<Candidate> plan;  // of that batch at that micro-batch
};

// At most most_micro_batches micro-batches; the micro-batch of the problem where one is set. Every
// batch that is larger and is a multiple of a micro-batch that fits has been tried, up to its first
// that does not.
LargestBatch largest_batch(const Problem& problem, const Planner& planner);

// A planner for each policy by itself, which largest_batch() may try at length.
std::vector<Planner> planners_of_each(const PlansAsked& asked);

// By each planner, the largest batch first. `say` is told what is being looked at.
std::vector<LargestBatch> largest_batches(const Problem& problem,
                                          const std::vector<Planner>& planners,
                                          const std::function<void(const std::string&)>& say = {});

}  // namespace spillway
