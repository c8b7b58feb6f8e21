// Host memory that a training takes beside its schedule: what frozen weights are read through, and
// the model that writes samples while it trains.
#pragma once

#include <cstdint>
#include <string>

#include "policies/workload/problem.hpp"

namespace spillway {

// So many reads are in flight, each of so many bytes and the block that they begin in.
inline constexpr unsigned frozen_reads_in_flight = 16;
inline constexpr std::uint64_t frozen_read_bytes = (std::uint64_t{1} << 20) + 4096;
inline constexpr std::uint64_t frozen_buffer_bytes = frozen_reads_in_flight * frozen_read_bytes;

// Sets Problem::frozen_in_place of a model with frozen parameters. machine.host.memory leaves room
// for its buffer and for Problem::sample_memory, so that a limit of host memory counts both: one
// byte where it leaves nothing, so that the schedule does not fit and its error says what would.
// Where the host memory is not known yet (0), it is left so. Can be called again.
void set_memory_beside(Problem& problem, bool frozen_in_place);

// Bytes that it wants, also where the memory is too small for them.
std::uint64_t memory_beside(const Problem& problem);

// In words, for "256 GB less the 16.8 MB of ...".
std::string what_is_beside(const Problem& problem);

}  // namespace spillway
