// SSD bandwidth by the number of drives. Internal to policies/.
#pragma once

#include <cstdint>

#include "policies/machine.hpp"

namespace spillway {

// Bandwidths with `count` drives from the table `by_count`, which is not empty: linear between
// rows, in proportion to the first row below it, the last row beyond it (the ceiling of the links,
// not of the drives).
Machine::Ssd::Row bandwidth_with(const Machine::Ssd& ssd, std::int64_t count);

}  // namespace spillway
