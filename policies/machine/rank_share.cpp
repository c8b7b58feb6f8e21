#include "policies/machine/rank_share.hpp"

#include "base/errors.hpp"

namespace spillway {

Machine rank_share(const Machine& node, std::int64_t ranks) {
  SPILLWAY_ASSERT(ranks >= 1 && node.cluster.sharing == 1, "a share is taken once");
  if (ranks == 1) return node;
  Machine rank = node;
  rank.cluster.sharing = ranks;
  const auto parts = static_cast<double>(ranks);
  const auto whole = static_cast<std::uint64_t>(ranks);
  for (double* rate :
       {&rank.host.bandwidth, &rank.host.io_bandwidth, &rank.host.cores,
        &rank.host.adam_params_per_second, &rank.host.adam_cores, &rank.ssd.read, &rank.ssd.write,
        &rank.ssd.total, &rank.ssd.cache_write, &rank.ssd.cache_recovery, &rank.cluster.nic})
    *rate /= parts;
  for (std::uint64_t* bytes : {&rank.host.memory, &rank.host.reserved, &rank.host.beside,
                               &rank.ssd.capacity, &rank.ssd.cache})
    *bytes /= whole;
  for (auto& [count, row] : rank.ssd.by_count) {
    row.read /= parts;
    row.write /= parts;
    row.total /= parts;
  }
  return rank;
}

}  // namespace spillway
