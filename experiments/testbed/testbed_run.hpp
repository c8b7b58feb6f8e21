// One configuration of the testbed, predicted and measured.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/calibrate/drift.hpp"
#include "experiments/calibrate/reference_kernels.hpp"
#include "experiments/testbed/testbed_grid.hpp"

namespace spillway {

struct TestbedOptions {
  int steps = 6;      // of a run; the first fills the pipeline and does not count
  int most_runs = 3;  // of a configuration whose runs are disturbed
  std::vector<std::filesystem::path> ssd;  // directories of the ssd tier
  std::vector<std::filesystem::path> data;
  bool durable = false;  // steps are committed, as `train` does unless told otherwise
  // Timed before and after every unthrottled run; outlives it. Null: never.
  ReferenceKernels* references = nullptr;
};

// Seconds of all tasks of a kind in one steady step.
struct KindSeconds {
  std::string kind;
  double predicted = 0, measured = 0;
};

// What one run gave, or, in a row, the mean of several.
struct TestbedRound {
  double predicted_seconds = 0;  // of a steady step
  double measured_seconds = 0;   // the median over the steady steps
  double scatter = 0;            // (80th percentile - 20th) / median of its steps
  // Unthrottled, where the machine file has references: the drift since it was written, the
  // prediction for the machine as it was during the run, and the interval around that.
  Drift drift;
  double corrected_seconds = 0, interval_low = 0, interval_high = 0;

  bool is_corrected() const { return !drift.empty(); }
  bool is_inside() const {
    return measured_seconds >= interval_low && measured_seconds <= interval_high;
  }
  double error() const { return predicted_seconds / measured_seconds - 1; }
  double corrected_error() const { return corrected_seconds / measured_seconds - 1; }
};

struct TestbedRow : TestbedRound {
  std::string regime, policy;
  std::string plan;          // as trained: the policy with what it left open
  std::string weights_hash;  // after the last step: equal where all weights are, bit by bit
  bool throttled = false;
  bool tuned = false;  // `plan` was searched for
  std::int64_t batch = 0, micro_batch = 0;
  int steps = 0;    // steady ones of a run
  int runs = 0;     // made; throttled, the least disturbed one counts, else each is a round
  double late = 0;  // time that work took beyond its modelled time / modelled time, over lanes
  std::vector<KindSeconds> kinds;
  std::vector<TestbedRound> rounds;  // where it was run more than once and every run counts

  // Its runs one by one: the rounds, or the row itself where there was one run.
  std::vector<TestbedRound> each_run() const;
  // Of the row's predicted / measured, corrected where it is: one standard error of the mean
  // without the ends (joined()), as a share of the mean; infinite of one run. By the winsorized
  // deviation (Tukey and McLaughlin, Sankhya A 25, 1963).
  double standard_error() const;
  // Of a run: how far what happened was not the machine stood for. Says nothing of the prediction.
  double disturbance() const { return scatter + late; }
};

// A throttled run is disturbed where its steps scatter, or its work overran, by more than this in
// all; it is then made again, and the least disturbed counts. The prediction has no part in it.
inline constexpr double most_disturbance = 0.03;

// Trains on the CPU backend, throttled, and holds the steps against the simulator's on
// `configuration.problem(base)`. Both go through the same definitions (traces/compare.hpp). An
// unthrottled run is not made again: how fast the machine was is part of what is measured. Throws
// FitError, InputError, MachineError.
TestbedRow run_configuration(const TestbedConfiguration& configuration, const Machine& base,
                             const TestbedOptions& options);

// The rounds of one configuration, at least one, as a row: means over the rounds that are left when
// a tenth of them, rounded, is dropped at either end of the order of predicted / measured. The
// scatter is that of predicted / measured over the rounds, divided by the root of their number.
TestbedRow joined(const std::vector<TestbedRow>& rounds);

// Whether a configuration that has had these runs is run again: while they are fewer than `rounds`,
// and, where at least three were asked for, fewer than `most_rounds` while the row's standard error
// is above most_standard_error. How good the prediction is has no part in it.
bool wants_another_round(const std::vector<TestbedRow>& runs, int rounds, int most_rounds);
inline constexpr double most_standard_error = 0.01;
inline constexpr int fewest_rounds_judged = 3;

nlohmann::ordered_json to_json(const TestbedRow& row);
TestbedRow row_from_json(const nlohmann::ordered_json& json);

// One line a row, RFC 4180: what to_json gives, a column for each kind's seconds.
std::string to_csv(const std::vector<TestbedRow>& rows);
// What to_csv wrote. Throws InputError (origin) where it did not.
std::vector<TestbedRow> rows_from_csv(const std::string& text, const std::string& origin);

}  // namespace spillway
