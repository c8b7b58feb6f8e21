// The least memory of one kind, with the others as they are, in which a training still fits.
//
// Sizes are tried to three digits: the answer is a size such as 14.3 GB that fits, while 14.2 GB
// does not.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/problem_request.hpp"
#include "experiments/questions/planner.hpp"

namespace spillway {

// Sizes of at most three digits in their order, 0 first: 999 bytes is the 999th, 1.00 kB the next.
std::uint64_t three_digit_size(std::int64_t index);
// The place of the least such size that is at least so many bytes.
std::int64_t three_digit_index(std::uint64_t bytes);

// What the machine has of a memory: of the GPU what one has, of the others what all ranks of a node
// have.
std::uint64_t size_there_is(const Problem& problem, Tier tier);

struct LeastMemory {
  Tier tier = Tier::gpu;
  // As what the request's gpu_memory or host_memory, or the machine's ssd.capacity, would be. 0:
  // nothing of it is needed.
  std::optional<std::uint64_t> bytes;  // nothing: it does not fit with any size that was tried
  std::uint64_t too_little = 0;  // the next smaller size, which does not fit; 0: there is none
  // A smaller size may fit: it takes too long to try in every micro-batch.
  bool cut_short = false;
  std::vector<Tier> full;        // with too_little or, where nothing fits, with all that was tried
  std::int64_t micro_batch = 0;  // with `bytes`
  std::string policy;            // with `bytes`, its open options settled
  bool is_more_than_there_is = false;  // than the request's machine has
};

// At the request's batch, in micro-batches of any size where none is set. The size that is found is
// verified with a whole schedule, and so is the next smaller one, which does not fit in any
// micro-batch. Where the machine has too little, larger sizes are tried, up to 1000 times as much.
// `say` is told what is being tried. Throws InputError where the request is wrong.
LeastMemory least_memory(const ProblemRequest& request, Tier tier, const Planner& planner,
                         const std::function<void(const std::string&)>& say = {});

}  // namespace spillway
