// What `train` decides before it starts: the machine's limits, the policy, the micro-batch, the
// prediction.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "policies/problem.hpp"

namespace spillway {

struct TrainPlan {
  Problem problem;     // with the limits and the micro-batch settled
  std::string policy;  // with `auto` settled
  // Absent without a machine file, and where that describes a GPU but the CPU trains, or the other
  // way round.
  std::optional<double> predicted_step_seconds;
};

// What trains, where that is not the CPU.
struct TrainHardware {
  bool cuda = false;
  // Bytes that a GPU can give to the gpu tier for a problem: the limit, where none is set or more
  // is; empty: the limit stays as it is.
  std::function<std::uint64_t(const Problem&)> gpu_bytes;
  // The sequences computed at once are Problem::use_gpu_sequences_at_once(), else as in the
  // problem.
  bool choose_sequences_at_once = false;
};

// `policy` may be "auto": the policy predicted fastest on problem.machine. With `machine_unknown`
// (no machine file was given) limits that are not set become what this computer has (`ssd`:
// directories on its drives, for their free space), nothing is predicted and `auto` is refused.
// Throws InputError; FitError when nothing fits.
TrainPlan plan_training(Problem problem, bool choose_micro_batch, const std::string& policy,
                        bool machine_unknown, const std::vector<std::filesystem::path>& ssd,
                        const TrainHardware& hardware = {});

// Text to train on when the user names none: Spillway's own documents and sources.
std::vector<std::filesystem::path> default_text();

}  // namespace spillway
