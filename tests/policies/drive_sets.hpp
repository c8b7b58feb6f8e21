// Machines with several sets of drives.
#pragma once

#include <cstdint>

#include "policies/machine/machine.hpp"

namespace spillway::test {

// So many sets, the first as it is but for its speed: each of the others has another one, in
// proportions that `choice` decides.
inline void give_drive_sets(Machine& machine, int sets, std::uint64_t choice) {
  for (int set = 0; set < sets; ++set) {
    Machine::Ssd& drives = machine.drives(set);
    if (set > 0) drives.capacity = machine.ssd.capacity;
    drives.count = 1 + set;
    drives.read = 1e9 * static_cast<double>(1 + (choice >> (3 * set)) % 8);
    drives.write = drives.read / static_cast<double>(1 + (choice >> (2 * set)) % 3);
    drives.total = 0;
  }
}

}  // namespace spillway::test
