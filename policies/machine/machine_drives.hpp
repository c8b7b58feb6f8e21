// SSD bandwidth by the number of drives and by queue depth, and of several sets together.
#pragma once

#include <cstdint>

#include "policies/machine/machine.hpp"

namespace spillway {

// Reads and writes that take turns have 1; none is faster beside the other kind than alone.
inline constexpr double least_mixed_gain = 1, most_mixed_gain = 2;

// Bandwidths with `count` drives from the table `by_count`, which is not empty: linear between
// rows, in proportion to the first row below it, the last row beyond it (the ceiling of the links,
// not of the drives).
Machine::Ssd::Row bandwidth_with(const Machine::Ssd& ssd, std::int64_t count);

// Moves the rows of by_queue_depth from `count_before` drives to ssd.count: what a drive delivers
// depends on the requests it has itself, so twice the drives need twice the requests.
void rescale_queue_depths(Machine::Ssd& ssd, std::int64_t count_before);

// `machine` with one set of drives in place of several: as fast as all of them together in any mix
// of reads and writes at the most, and with the least latency of any. No distribution over the sets
// is faster, so that bounds may take it.
Machine with_drives_together(Machine machine);

}  // namespace spillway
