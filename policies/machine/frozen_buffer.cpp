#include "policies/machine/frozen_buffer.hpp"

#include <algorithm>

namespace spillway {

void set_frozen_in_place(Problem& problem, bool in_place) {
  problem.frozen_in_place = in_place && problem.model.has_frozen();
  Machine::Host& host = problem.machine.host;
  host.memory += host.frozen_buffer;
  host.frozen_buffer = 0;
  if (!problem.frozen_in_place || host.memory == 0) return;
  host.frozen_buffer = std::min(frozen_buffer_bytes, host.memory - 1);
  host.memory -= host.frozen_buffer;
}

}  // namespace spillway
