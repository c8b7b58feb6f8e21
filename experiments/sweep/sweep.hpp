// Runs a sweep: every point that has no result yet, in parallel, and the table of all of them.
//
// The folder of a sweep holds results.csv, the same table as results.sqlite, and the journals they
// are made from (sweep_journal.hpp). A
// run goes on where an earlier one stopped, however it was stopped; results do not depend on the
// number of threads, nor on which run or shard they are from.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "experiments/sweep/sweep_journal.hpp"
#include "experiments/sweep/sweep_points.hpp"
#include "experiments/sweep/sweep_table.hpp"

namespace spillway {

struct EvaluationReuse;

struct SweepProgress {
  std::size_t done = 0, total = 0;  // points of this run
  double seconds = 0;               // since it began
};

struct SweepShard {
  std::size_t index = 1, count = 1;  // 1-based: 2 of 8
};
// "2/8"; throws InputError.
SweepShard parse_shard(const std::string& text);

struct SweepRun {
  std::filesystem::path folder;
  std::optional<SweepShard> shard;                     // only every count-th point
  int jobs = 1;                                        // threads
  std::function<void(const SweepProgress&)> progress;  // one thread at a time; may be empty
};

// What is to be done, before anything is.
struct SweepState {
  SweepResults results;              // of the plan's points
  std::vector<std::size_t> missing;  // points of this run without a result
  std::size_t damaged = 0;           // lines of journals that were dropped
  std::size_t foreign = 0;           // results of other settings or of another program
};
// Throws MachineError.
SweepState inspect_sweep(const SweepPlan& plan, const SweepRun& run);

struct SweepOutcome {
  std::size_t run = 0;      // points that were evaluated now
  std::size_t missing = 0;  // points that still have no result: other shards'
  std::size_t ok = 0, does_not_fit = 0, invalid = 0;  // of those that have one
  bool written = false;  // the table was written; not so when it was right already
  std::filesystem::path csv, database;
  SweepTable table;
};

// Evaluates what is missing and, when every point has a result, writes the table. Throws
// MachineError (what was evaluated before is kept) and InputError (another process is at it).
SweepOutcome run_sweep(const SweepPlan& plan, const SweepRun& run, SweepState state);

// One point as the JSON object that journals hold: status, reason, hint, the object of
// `simulate --json`, roofs.
std::string evaluate_point(const SweepPoint& point, EvaluationReuse& reuse);

}  // namespace spillway
