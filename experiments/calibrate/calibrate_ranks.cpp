#include "experiments/calibrate/calibrate_ranks.hpp"

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "experiments/calibrate/rank_link.hpp"

namespace spillway {

namespace {

// Rates of what the ranks of a node share (rank_share.hpp): each has measured its own part.
std::vector<double*> shared_rates(Machine& machine) {
  std::vector<double*> rates = {
      &machine.host.bandwidth,  &machine.host.io_bandwidth, &machine.host.adam_params_per_second,
      &machine.host.adam_cores, &machine.ssd.read,          &machine.ssd.write,
      &machine.ssd.total};
  for (Machine::Ssd& more : machine.more_ssd)
    rates.insert(rates.end(), {&more.read, &more.write, &more.total});
  for (auto& [count, row] : machine.ssd.by_count)
    rates.insert(rates.end(), {&row.read, &row.write, &row.total});
  return rates;
}

}  // namespace

Machine calibrate_ranks(RankTeam& team, const CalibrationOptions& options,
                        const CalibrationProgress& progress, const CalibrationNote& note) {
  const std::vector<Machine::Cluster::Collective> collectives = measure_collectives(team);
  const RankLink link = measure_link(team);
  team.barrier();
  Machine own = calibrate(options, progress, note);
  const std::vector<std::string> all = team.gather(machine_to_toml(own));
  Machine machine = parse_machine(all.front(), "what rank 0 has measured");
  const std::vector<double*> sums = shared_rates(machine);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    Machine other = parse_machine(all[rank], fmt::format("what rank {} has measured", rank));
    const std::vector<double*> rates = shared_rates(other);
    for (std::size_t i = 0; i < std::min(sums.size(), rates.size()); ++i) *sums[i] += *rates[i];
  }
  const std::int64_t ranks = team.size();
  machine.description += fmt::format(", as {} ranks at once find it", ranks);
  machine.gpu.memory =
      round_down(machine.gpu.memory / static_cast<std::uint64_t>(ranks), buffer_alignment);
  machine.cluster.gpus = ranks;
  machine.cluster.nvlink = link.bandwidth;
  machine.cluster.nvlink_latency_ns = link.latency_ns;
  machine.cluster.cores = link.cores;
  machine.cluster.collectives = collectives;
  const std::string measured =
      fmt::format("measured between {} ranks over {}", ranks, team.library());
  for (const char* key : {"cluster.nvlink", "cluster.nvlink_latency", "cluster.cores"})
    machine.sources[key] = measured;
  machine.sources["cluster.gpus"] = "ranks that were calibrated at once";
  return machine;
}

}  // namespace spillway
