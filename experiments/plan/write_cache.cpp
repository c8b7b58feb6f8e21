#include "experiments/plan/write_cache.hpp"

#include <utility>

#include "policies/cost/link_rates.hpp"

namespace spillway {

std::optional<double> WriteCache::steps_until_full(double bytes_per_step,
                                                   double step_seconds) const {
  if (holds(bytes_per_step, step_seconds)) return {};
  return bytes / (bytes_per_step - recovery * step_seconds);
}

std::optional<WriteCache> write_cache_of(const Machine& machine) {
  const Machine::Ssd& ssd = machine.ssd;
  if (ssd.count == 0 || ssd.cache == 0 || ssd.cache_write <= ssd.write) return {};
  // In bytes that all sets of drives are written, of which the first has its share.
  const double share = speed_shares(machine)[0];
  return WriteCache{static_cast<double>(ssd.cache) * static_cast<double>(ssd.count) / share,
                    ssd.cache_write, ssd.write, ssd.cache_recovery / share};
}

SimulationResult simulate_long_run(std::span<const Schedule> stages, const Machine& machine) {
  SimulationResult full = simulate_stages(stages, machine);
  const std::optional<WriteCache> cache = write_cache_of(machine);
  const double written = full.ssd_bytes_written_per_step;
  // A faster step writes no fewer bytes a second.
  if (!cache || written == 0 || !cache->holds(written, full.step_seconds)) return full;
  Machine fast = machine;
  fast.ssd.write = cache->write;
  SimulationResult in_cache = simulate_stages(stages, fast);
  const bool holds = cache->holds(in_cache.ssd_bytes_written_per_step, in_cache.step_seconds);
  return holds ? in_cache : full;
}

}  // namespace spillway
