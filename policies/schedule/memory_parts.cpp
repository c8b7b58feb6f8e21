#include "policies/schedule/memory_parts.hpp"

#include <algorithm>
#include <array>

namespace spillway {

std::vector<MemoryPart> parts_at_peak(const Schedule& schedule, Tier tier) {
  const auto buffers = schedule.buffers();
  std::vector<std::int64_t> change(schedule.tasks().size() + 1, 0);
  for (const BufferInfo& b : buffers) {
    if (b.tier != tier || b.persistent || b.first_use == none) continue;
    change[b.first_use] += static_cast<std::int64_t>(b.bytes);
    change[b.last_use + 1] -= static_cast<std::int64_t>(b.bytes);
  }
  std::int64_t live = 0, most = -1;
  TaskId fullest = 0;
  for (TaskId t = 0; t < schedule.tasks().size(); ++t) {
    live += change[t];
    if (live > most) {
      most = live;
      fullest = t;
    }
  }
  std::array<MemoryPart, buffer_kind_count> parts;
  for (const BufferInfo& b : buffers) {
    if (b.tier != tier) continue;
    if (!b.persistent && (b.first_use == none || b.first_use > fullest || b.last_use < fullest))
      continue;
    MemoryPart& part = parts[static_cast<std::size_t>(b.kind)];
    part.kind = b.kind;
    part.bytes += b.bytes;
    ++part.buffers;
  }
  std::vector<MemoryPart> found;
  std::copy_if(parts.begin(), parts.end(), std::back_inserter(found),
               [](const MemoryPart& part) { return part.buffers > 0; });
  std::stable_sort(found.begin(), found.end(),
                   [](const MemoryPart& a, const MemoryPart& b) { return a.bytes > b.bytes; });
  return found;
}

}  // namespace spillway
