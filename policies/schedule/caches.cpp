#include "policies/schedule/caches.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace spillway {

namespace {

constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }
constexpr std::uint64_t least_page_bytes = 1 << 17, most_pages = 1 << 20;

// When each page of a memory was touched last, in bytes that all tasks had moved until then.
class TouchedPages {
 public:
  void grow_to(std::uint64_t end) { bytes_ = std::max(bytes_, end); }

  void begin() {
    while (bytes_ / page_ > most_pages) page_ *= 2;
    touched_.assign(bytes_ / page_ + 1, never);
  }

  // Of more than caches hold, what is touched last.
  void touch(std::uint64_t from, std::uint64_t bytes, std::uint64_t moved) {
    const std::uint64_t lost = bytes - std::min(bytes, cached_bytes);
    from += lost;
    bytes -= lost;
    for (std::uint64_t p = from / page_; p <= (from + bytes - 1) / page_; ++p) touched_[p] = moved;
  }

  // The share of these bytes' pages that was touched since; none where caches cannot hold them.
  double share_since(std::uint64_t from, std::uint64_t bytes, std::uint64_t moved) const {
    if (bytes > cached_bytes) return 0;
    const std::uint64_t first = from / page_, last = (from + bytes - 1) / page_;
    std::uint64_t count = 0;
    for (std::uint64_t p = first; p <= last; ++p)
      if (touched_[p] != never && touched_[p] >= moved) ++count;
    return static_cast<double>(count) / static_cast<double>(last - first + 1);
  }

 private:
  static constexpr std::uint64_t never = ~std::uint64_t{0};
  std::uint64_t bytes_ = 0, page_ = least_page_bytes;
  std::vector<std::uint64_t> touched_;
};

bool counts(Role role) {
  return role == Role::parameters || role == Role::gradient || role == Role::saved;
}

}  // namespace

void mark_cached_operands(std::span<Task> tasks, std::span<const Access> accesses,
                          std::span<const BufferInfo> buffers) {
  std::array<TouchedPages, 2> memories;  // the GPU's and the host's, which a CPU has in one
  const auto memory_of = [&](const Access& access) {
    const std::size_t tier = index_of(buffers[access.buffer].tier);
    return access.bytes > 0 && tier < memories.size() ? &memories[tier] : nullptr;
  };
  for (const BufferInfo& buffer : buffers) {
    const std::size_t tier = index_of(buffer.tier);
    if (tier < memories.size()) memories[tier].grow_to(buffer.offset + buffer.bytes);
  }
  for (TouchedPages& memory : memories) memory.begin();
  std::uint64_t moved = 0;
  for (Task& task : tasks) {
    const auto own = accesses.subspan(task.first_access, task.access_count);
    double all = 0, cached = 0;
    for (const Access& access : own) {
      const TouchedPages* const memory = memory_of(access);
      if (memory == nullptr || !is_layer_pass(task.kind) || !counts(access.role)) continue;
      const double bytes = static_cast<double>(access.bytes) * (access.mode == Mode::read ? 1 : 2);
      all += bytes;
      cached += bytes * memory->share_since(buffers[access.buffer].offset + access.offset,
                                            access.bytes, moved - std::min(moved, cached_bytes));
    }
    if (all > 0)
      task.in_caches = static_cast<std::uint8_t>(std::lround(all_in_caches * cached / all)) & 7;
    for (const Access& access : own) {
      TouchedPages* const memory = memory_of(access);
      if (memory == nullptr) continue;
      moved += access.bytes;
      memory->touch(buffers[access.buffer].offset + access.offset, access.bytes, moved);
    }
  }
}

}  // namespace spillway
