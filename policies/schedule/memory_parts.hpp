// What a tier holds where a schedule needs most of it.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/schedule/schedule.hpp"

namespace spillway {

struct MemoryPart {
  BufferKind kind = BufferKind::scratch;
  std::uint64_t bytes = 0;
  int buffers = 0;
};

// By kind of buffer, the largest part first, at the first task at which most bytes are live.
std::vector<MemoryPart> parts_at_peak(const Schedule& schedule, Tier tier);

}  // namespace spillway
