// `spillway tune --benchmark`: what the tuned plan gains over built-in policies on a grid of
// problems, how far it is from the proven bound, and how many sequences a step it needs for nearly
// full speed.
//
// A grid is a sweep file without a policy (docs/sweep.md). Rows are kept in the folder's journal as
// they are found, so that a run goes on where an earlier one stopped; the same grid, effort and
// seed make the same rows on any computer with any number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/sweep/sweep_points.hpp"
#include "experiments/tune/tune.hpp"

namespace spillway {

// The points of a grid: the name of a built-in one, or the path of a file. Throws InputError: also
// where the grid names a policy or has a point that is invalid.
SweepPlan plan_benchmark(const std::string& grid, const std::string& program);

struct BenchmarkOptions {
  std::uint64_t effort = default_effort, seed = 0;
  unsigned threads = 1;
  std::optional<double> share;  // of saturated throughput, for smallest_batches; nothing: not asked
  std::filesystem::path folder;  // of the journal and the table; empty: nothing is kept
};

// A plan that was evaluated in full, in its fastest micro-batch.
struct BenchmarkPlan {
  std::string policy;
  std::int64_t micro_batch = 0;
  double step_seconds = 0;
};

// Nothing of a plan: none of its kind fits.
struct BenchmarkRow {
  std::vector<std::string> cells;              // of the grid's axes
  std::optional<BenchmarkPlan> published;      // the fastest built-in policy as published
  std::optional<BenchmarkPlan> built_in;       // with the best of the options that were tried
  std::optional<BenchmarkPlan> zero_infinity;  // as built_in, of this policy
  std::optional<BenchmarkPlan> tuned;
  double bound_seconds = 0;  // no plan takes less; 0: no plan fits
  std::string bound_by;

  // The tuned plan's speed against another plan's; nothing: one of them is missing.
  std::optional<double> speedup(const std::optional<BenchmarkPlan>& other) const;
  // How much of the tuned plan's time is above the bound, 0 to 1.
  std::optional<double> gap() const;
};

// All points of the grid that differ in the batch only: GreedySnake over batches, and tuned plans
// where drives or links keep it from the share at smaller ones.
struct BatchRow {
  std::vector<std::string> cells;  // of the grid's axes; that of the batch is empty
  // The smallest batch at which GreedySnake reaches the share of its peak, and its peak. 0: none
  // fits.
  std::int64_t batch = 0, peak_batch = 0;
  double peak_tokens_per_second = 0;
  std::string limited_below;  // what binds at the largest batch evaluated below `batch`
  // A quarter below `batch`; 0: no such batch.
  std::int64_t fewer = 0;
  // Of tuned plans, there and at peak_batch, and of no plan at all more there; 0: nothing fits.
  double fewer_tokens_per_second = 0, tuned_peak_tokens_per_second = 0, most_tokens_per_second = 0;

  bool is_io_bound() const;
  // Whether so many fewer sequences are enough for the share of the tuned plans' own peak, or of
  // GreedySnake's.
  bool reaches_own_peak(double share) const;
  bool reaches_other_peak(double share) const;
  bool may_reach_own_peak(double share) const;  // by the bound
  bool may_reach_other_peak(double share) const;
};

struct Benchmark {
  std::vector<std::string> keys;  // of the grid's axes
  std::vector<BenchmarkRow> rows;
  std::vector<BatchRow> batches;
};

struct BenchmarkSummary {
  std::size_t points = 0, fits = 0;
  std::size_t only_tuned = 0;  // points where no built-in policy fits
  std::size_t own_plans = 0;   // points where the answer is no built-in policy's plan
  std::size_t slower = 0;      // points where some built-in policy is faster
  // Geometric means of speedups over the points where both fit; 0: there is none.
  double against_published = 0, against_built_in = 0, against_zero_infinity = 0;
  double median_gap = 0, largest_gap = 0;
};
BenchmarkSummary summary_of(const std::vector<BenchmarkRow>& rows);

struct BatchSummary {
  std::size_t rows = 0, io_bound = 0;  // what follows is of these
  std::size_t own_peak = 0, may_own_peak = 0, other_peak = 0, may_other_peak = 0;
};
BatchSummary summary_of(const std::vector<BatchRow>& rows, double share);

// Of the points, then of what differs in the batch only.
struct BenchmarkProgress {
  std::string rows;                 // what they are, in words
  std::size_t done = 0, total = 0;  // rows
  std::size_t found = 0;            // of these, in this run
  double seconds = 0;               // since the first of them
  std::string what;                 // the row that is being found; empty: none is left
};

// What is told of a run, on the caller's thread; each may be empty.
struct BenchmarkListener {
  std::function<void(const BenchmarkProgress&)> progress;
  std::function<void(const BenchmarkRow&)> row;
  std::function<void(const BatchRow&)> batch_row;
};

// Throws MachineError where the folder cannot be written, InputError where another process writes
// to it.
Benchmark run_benchmark(const SweepPlan& grid, const BenchmarkOptions& options,
                        const BenchmarkListener& listener = {});

}  // namespace spillway
