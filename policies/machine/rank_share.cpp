#include "policies/machine/rank_share.hpp"

#include "base/errors.hpp"

namespace spillway {

namespace {

// What ranks share, each with its part: parts of a rate by `rate`, of bytes by `bytes`.
template <class Rate, class Bytes>
void for_shared(Machine& machine, const Rate& rate, const Bytes& bytes) {
  Machine::Host& host = machine.host;
  Machine::Ssd& ssd = machine.ssd;
  for (double* one : {&host.bandwidth, &host.io_bandwidth, &host.cores,
                      &host.adam_params_per_second, &host.adam_cores, &ssd.read, &ssd.write,
                      &ssd.total, &ssd.cache_write, &ssd.cache_recovery, &machine.cluster.nic})
    rate(*one);
  for (Machine::Ssd& more : machine.more_ssd) {
    for (double* one : {&more.read, &more.write, &more.total}) rate(*one);
    bytes(more.capacity);
  }
  for (auto& [count, row] : ssd.by_count) {
    for (double* one : {&row.read, &row.write, &row.total}) rate(*one);
  }
  for (std::uint64_t* one : {&host.memory, &host.reserved, &host.beside, &ssd.capacity, &ssd.cache})
    bytes(*one);
}

}  // namespace

Machine rank_share(const Machine& node, std::int64_t ranks) {
  SPILLWAY_ASSERT(ranks >= 1 && node.cluster.sharing == 1, "a share is taken once");
  if (ranks == 1) return node;
  Machine rank = node;
  rank.cluster.sharing = ranks;
  for_shared(
      rank, [&](double& rate) { rate /= static_cast<double>(ranks); },
      [&](std::uint64_t& bytes) { bytes /= static_cast<std::uint64_t>(ranks); });
  return rank;
}

Machine whole_of(const Machine& rank) {
  Machine node = rank;
  node.cluster.sharing = 1;
  for_shared(
      node, [&](double& rate) { rate *= static_cast<double>(rank.cluster.sharing); },
      [&](std::uint64_t& bytes) { bytes *= static_cast<std::uint64_t>(rank.cluster.sharing); });
  return node;
}

}  // namespace spillway
