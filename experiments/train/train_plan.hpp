// What `train` decides before it starts: the machine's limits, the policy, the micro-batch, the
// prediction.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/store/store_location.hpp"
#include "experiments/plan/wear.hpp"
#include "policies/workload/problem.hpp"
#include "sim/step_interval.hpp"

namespace spillway {

struct TrainPlan {
  Problem problem;     // with the limits and the micro-batch settled
  std::string policy;  // with `auto` settled
  // Absent where no rates are known, and where a machine file describes a GPU but the CPU trains,
  // or the other way round.
  std::optional<double> predicted_step_seconds;
  std::optional<StepUncertainty> uncertainty = {};  // of the prediction, where spreads are known
};

// What trains, where that is not the CPU.
struct TrainHardware {
  bool cuda = false;
  // Bytes that a GPU can give to the gpu tier for a problem: the limit, where none is set or more
  // is; empty: the limit stays as it is.
  std::function<std::uint64_t(const Problem&)> gpu_bytes;
  // Whether the kernel batch is that of Problem::use_gpu_sequences_at_once(); else the problem's.
  bool choose_sequences_at_once = false;
  // Where no machine file is given: this computer's rates for the problem at these micro-batches.
  // Empty: `auto` is refused then.
  std::function<Machine(const Problem&, const std::vector<std::int64_t>& micro_batches)> measure =
      {};
};

// `policy` may be "auto": the choice of evaluate_candidates() on problem.machine. With
// `machine_unknown` (no machine file was given) limits that are not set become what this computer
// has (`ssd`: directories on its drives, for their free space), and only `auto` has rates, by
// hardware.measure. On a machine that is known the store's second copies must fit the drives, too,
// as `run` wants them. `sums_of`: the policy of a training that goes on; only those that add up
// micro-batches in the same order are tried. Throws InputError; FitError, with remedies, when
// nothing fits.
TrainPlan plan_training(Problem problem, bool choose_micro_batch, const std::string& policy,
                        bool machine_unknown, const DriveFolders& ssd,
                        const TrainHardware& hardware = {}, const WholeRun& run = {},
                        const std::string& sums_of = "");

// Text to train on when the user names none: Spillway's own documents and sources.
std::vector<std::filesystem::path> default_text();

}  // namespace spillway
