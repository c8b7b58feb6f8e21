// What reading frozen weights in place takes of host memory beside the schedule.
#pragma once

#include <cstdint>

#include "policies/workload/problem.hpp"

namespace spillway {

// So many reads are in flight, each of so many bytes and the block that they begin in.
inline constexpr unsigned frozen_reads_in_flight = 16;
inline constexpr std::uint64_t frozen_read_bytes = (std::uint64_t{1} << 20) + 4096;
inline constexpr std::uint64_t frozen_buffer_bytes = frozen_reads_in_flight * frozen_read_bytes;

// Sets Problem::frozen_in_place of a model with frozen parameters. With it machine.host.memory
// leaves room for the buffer, so that a limit of host memory counts it: one byte where it leaves
// nothing, so that the schedule does not fit and its error says what would. Where the host memory
// is not known yet (0), it is left so. Can be called again.
void set_frozen_in_place(Problem& problem, bool in_place);

}  // namespace spillway
