// What of a schedule concerns the other ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/schedule/schedule.hpp"

namespace spillway {

// Ranks whose lanes have the same collectives in the same order have the same hash.
std::uint64_t hash_of_collectives(const Schedule& schedule);

// What a stage of a pipeline sends to each stage, and then what it receives from each: a hash of
// their sizes, in order. A stage's of sending to another is that other's of receiving from it.
std::vector<std::uint64_t> hashes_of_messages(const Schedule& schedule);

}  // namespace spillway
