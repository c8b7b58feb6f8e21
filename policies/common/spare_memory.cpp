#include "policies/common/spare_memory.hpp"

#include <algorithm>
#include <array>

namespace spillway {

std::optional<Program> use_spare_memory(Program& plain, const Machine& machine,
                                        const std::function<Program(const TierBytes&)>& emit) {
  const TierBytes used = plain.plan_memory().extent;
  const TierBytes capacity = {machine.gpu.memory, machine.host.memory, 0};
  if (used[0] > capacity[0]) return std::nullopt;
  // What stays on the GPU need not be in host memory, which may be too little for `plain`.
  const TierBytes all = {capacity[0] - used[0], capacity[1] - std::min(capacity[1], used[1]), 0};
  constexpr std::array shares = {1.0, 0.99, 0.95, 0.85, 0.7, 0.5, 0.25, 0.0};  // at most, by trial
  std::array<std::size_t, 2> trial{};
  for (TierBytes spare = all; spare != TierBytes{};) {
    Program program = emit(spare);
    const TierBytes extent = program.plan_memory().extent;
    if (extent[0] <= capacity[0] && extent[1] <= capacity[1]) {
      // With less memory the program without them would do: what they take is what it leaves.
      TierBytes kept{};
      for (std::size_t tier = 0; tier < 2; ++tier)
        kept[tier] = extent[tier] - std::min(extent[tier], used[tier]);
      program.set_kept(kept);
      return program;
    }
    for (std::size_t tier = 0; tier < 2; ++tier) {
      if (extent[tier] <= capacity[tier]) continue;
      // Where nothing is kept in this memory, what is kept in the other one takes of it.
      const std::size_t of = spare[tier] > 0 ? tier : 1 - tier;
      const std::uint64_t too_much = std::min(spare[of], extent[tier] - capacity[tier]);
      if (spare[of] == 0) continue;
      const double most = shares[++trial[of]] * static_cast<double>(all[of]);
      spare[of] = std::min(spare[of] - too_much, static_cast<std::uint64_t>(most));
    }
  }
  return std::nullopt;
}

}  // namespace spillway
