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

struct TestbedRow {
  std::string regime, policy;
  std::string plan;          // as trained: the policy with what it left open
  std::string weights_hash;  // after the last step: equal where all weights are, bit by bit
  bool throttled = false;
  bool tuned = false;  // `plan` was searched for
  std::int64_t batch = 0, micro_batch = 0;
  double predicted_seconds = 0;  // of a steady step
  double measured_seconds = 0;   // the median over the steady steps of the run that counts
  double scatter = 0;            // (80th percentile - 20th) / median of its steps
  int steps = 0;                 // steady ones
  int runs = 0;                  // made; the least disturbed one counts
  double late = 0;  // time that work took beyond its modelled time / modelled time, over lanes
  std::vector<KindSeconds> kinds;
  // Unthrottled, where the machine file has references: the drift since it was written, the
  // prediction for the machine as it was during the run, and the interval around that.
  Drift drift;
  double corrected_seconds = 0, interval_low = 0, interval_high = 0;

  bool is_corrected() const { return !drift.empty(); }
  double corrected_error() const { return corrected_seconds / measured_seconds - 1; }
  bool is_inside() const {
    return measured_seconds >= interval_low && measured_seconds <= interval_high;
  }
  double error() const { return predicted_seconds / measured_seconds - 1; }
  // Of a run: how far what happened was not the machine stood for. Says nothing of the prediction.
  double disturbance() const { return scatter + late; }
};

// A run is disturbed where its steps scatter, or its work overran, by more than this in all; it is
// then made again, and the least disturbed counts. The prediction has no part in it.
inline constexpr double most_disturbance = 0.03;

// Trains on the CPU backend, throttled, and holds the steps against the simulator's on
// `configuration.problem(base)`. Both go through the same definitions (traces/compare.hpp). Throws
// FitError, InputError, MachineError.
TestbedRow run_configuration(const TestbedConfiguration& configuration, const Machine& base,
                             const TestbedOptions& options);

nlohmann::ordered_json to_json(const TestbedRow& row);
TestbedRow row_from_json(const nlohmann::ordered_json& json);

// One line a row, RFC 4180: what to_json gives, a column for each kind's seconds.
std::string to_csv(const std::vector<TestbedRow>& rows);

}  // namespace spillway
