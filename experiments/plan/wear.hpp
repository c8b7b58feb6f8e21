// What a training writes to the drives, all in all: its steps, its commits, its beginning; and how
// long the drives last at that (docs/metrics.md).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "experiments/plan/write_cache.hpp"
#include "policies/schedule/fit_margin.hpp"
#include "policies/workload/durability.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// What the user says of the training as a whole. The default is that of `train`.
struct WholeRun {
  Durability durability = {DurabilityMode::on, 0};
  std::optional<std::int64_t> steps;  // of the whole training; nothing: not said
};

// A plan of the training that nobody has given a step time for has no `step_seconds`.
struct Wear {
  StoreBytes store;
  // As many stores as this one are on the drives of a node: of several ranks or stages, each with
  // its own. All that is written is of all of them.
  double stores = 1;
  std::int64_t commit_every = 0;   // steps; 0: nothing is committed
  std::int64_t also_every = 0;     // steps that are committed beside these; 0: none
  double commit_cost_seconds = 0;  // for which one commit takes the drives' write bandwidth
  double start_bytes = 0;          // written before the first step
  double schedule_bytes = 0;       // written by a steady step
  std::optional<double> step_seconds;
  std::optional<std::int64_t> steps;  // still to be made
  std::int64_t first_step = 0;        // of a run that goes on
  std::int64_t commits = 0;           // in these steps, the last one in any case
  double rated_bytes = 0;             // of all drives; 0: not known
  std::optional<WriteCache> cache;    // where writes of the training go into one
  // A step whose writes find room in it; nothing: there is no cache, it never fills, or the number
  // of steps is not known.
  std::optional<double> step_seconds_in_cache;

  double commit_bytes_per_step() const;
  double bytes_per_step() const { return schedule_bytes + commit_bytes_per_step(); }
  std::optional<double> bytes_per_day() const;
  std::optional<double> run_bytes() const;  // of all `steps`
  // Steps that find room in the write cache take step_seconds_in_cache.
  std::optional<double> run_seconds() const;
  std::optional<double> drive_years() const;      // at this rate, day and night; nothing: no wear
  std::optional<double> share_of_rating() const;  // that the run uses up
  // Steps at the pace of the cache for which it has room, beside what is written before the first;
  // nothing: it never fills, or there is no cache, or no pace.
  std::optional<double> steps_until_cache_full() const;
  // Whether the run is over before the cache is full.
  bool ends_in_cache() const;
  // Steps of the run whose writes find room in the cache.
  double steps_in_cache() const;
};

// What a setting of durability says; where it is empty, what the program that is simulated does:
// those of others commit nothing. Throws InputError.
Durability durability_of(const std::string& text, const std::string& framework);

// Commits in `steps` steps from first_step on: after every multiple of `every`, of `also_every` (0:
// none), and after the last.
std::int64_t commits_in(std::int64_t first_step, std::int64_t steps, std::int64_t every,
                        std::int64_t also_every = 0);

// Of a plan that is known by its store, with second copies where run.durability is on, and by what
// its steps write and take; without step_seconds_in_cache.
Wear wear_of(const StoreBytes& store, const Problem& problem, double schedule_bytes,
             std::optional<double> step_seconds, const WholeRun& run);
// `result` may be null: then the bytes of a step are the mean over the schedule's.
Wear wear_of(const Schedule& schedule, const SimulationResult* result, const WholeRun& run);

// Whether the store, with second copies and records, fits the drives. Where the machine has none
// (commits then go to a drive that nobody has described), whether the ssd tier is empty.
bool fits_drives(const StoreBytes& store, const Machine& machine);

// Peaks and capacities of the schedule's memories, of the drives with the whole store.
TierUses tier_uses(const Schedule& schedule, const Wear& wear);
// The same of memories that are known without a schedule.
TierUses with_store(TierUses memory, const StoreBytes& store, const Machine& machine);

// Adds "durability" and "wear" to the object of one plan, and makes its memory.ssd.peak_bytes and
// its ssd_bytes_written_per_step those of the whole store and of all writes. Either may be missing.
void add_wear(nlohmann::ordered_json& json, const Wear& wear, const Machine& machine);

}  // namespace spillway
