// The fast write cache of consumer drives (ssd.cache of the machine file): whether a training that
// goes on for long writes at the cache's rate or, once the cache is full, at ssd.write.
//
// A cache of C bytes that is written at b bytes a step of t seconds, and emptied at E bytes/s,
// never fills where b / t <= E; else it is full after about C / (b - E t) steps. Where E is not
// known it is 0: the cache stays full.
#pragma once

#include <optional>
#include <span>

#include "experiments/plan/all_ranks.hpp"
#include "sim/simulate.hpp"

namespace spillway {

struct WriteCache {
  double bytes = 0;                 // of all drives
  double write = 0, when_full = 0;  // bytes/s: ssd.cache_write, ssd.write
  double recovery = 0;              // bytes/s: ssd.cache_recovery

  // Whether so many bytes a step of so many seconds never fill it.
  bool holds(double bytes_per_step, double step_seconds) const {
    return bytes_per_step <= recovery * step_seconds;
  }
  // Steps that write it full; nothing: it never is.
  std::optional<double> steps_until_full(double bytes_per_step, double step_seconds) const;
};

// Nothing where the machine file gives none, or one that is no faster than the drives behind it.
std::optional<WriteCache> write_cache_of(const Machine& machine);

// As simulate_stages() once the training has gone on for long: with writes at the cache's rate
// where what the schedules write at that pace never fills the cache, else at ssd.write. `stages`:
// of a pipeline, or one schedule alone (stages_of()).
SimulationResult simulate_long_run(std::span<const Schedule> stages, const Machine& machine);
inline SimulationResult simulate_long_run(const Schedule& schedule, const Machine& machine) {
  return simulate_long_run(stages_of(schedule), machine);
}

}  // namespace spillway
