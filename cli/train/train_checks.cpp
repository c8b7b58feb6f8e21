#include "cli/train/train_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/run/cuda_module.hpp"
#include "experiments/plan/candidates.hpp"

namespace spillway::cli {

namespace fs = std::filesystem;

void check_optimizer(const OptimizerSettings& o) {
  const auto require = [](bool holds, const char* option, auto value, const char* range) {
    if (!holds)
      throw InputError(fmt::format("{} {}: {}", option, value, range),
                       "`spillway train --help` names the default");
  };
  // Written so that a NaN does not pass.
  require(o.learning_rate >= 0 && std::isfinite(o.learning_rate), "--learning-rate",
          o.learning_rate, "not a number of at least 0");
  require(o.weight_decay >= 0 && std::isfinite(o.weight_decay), "--weight-decay", o.weight_decay,
          "not a number of at least 0");
  require(o.beta1 >= 0 && o.beta1 < 1, "--beta1", o.beta1, "not at least 0 and below 1");
  require(o.beta2 >= 0 && o.beta2 < 1, "--beta2", o.beta2, "not at least 0 and below 1");
  require(o.warmup_steps >= 0, "--warmup", o.warmup_steps, "not a number of steps");
  require(o.decay_steps >= 0, "--decay-steps", o.decay_steps, "not a number of steps");
  require(o.decay_steps == 0 || o.decay_steps > o.warmup_steps, "--decay-steps", o.decay_steps,
          "not after the end of --warmup, so there is nothing to decay");
}

std::vector<fs::path> ssd_directories(const std::string& option) {
  std::vector<fs::path> directories;
  std::istringstream stream(option);
  for (std::string item; std::getline(stream, item, ',');) {
    if (!item.empty()) directories.emplace_back(item);
  }
  if (!option.empty() && directories.empty()) {
    throw InputError(fmt::format("--ssd {}: names no directory", option), "--ssd DIR[,DIR]");
  }
  for (const fs::path& directory : directories) {
    std::error_code ignored;
    const auto same = [&](const fs::path& other) {
      return fs::equivalent(directory, other, ignored);
    };
    if (std::count_if(directories.begin(), directories.end(), same) > 1) {
      throw InputError(fmt::format("--ssd {}: the directory is named twice", directory.string()),
                       "name each drive's directory once");
    }
    if (fs::is_directory(directory, ignored)) continue;
    throw InputError(fmt::format("--ssd {}: there is no such directory", directory.string()),
                     "create it, or check that the drive is mounted");
  }
  return directories;
}

void check_backend(const Problem& problem, bool cuda) {
  if (const std::optional<std::string> why_not = why_not_trainable(problem.model)) {
    throw InputError(*why_not, "simulate it, or train one of the GPT models (`spillway models`)");
  }
  if (cuda) return;
  if (!computes_in(Backend::cpu, problem.workload.precision)) {
    throw InputError("--precision bf16: the CPU backend computes in fp32 only",
                     "add --precision fp32");
  }
  if (problem.workload.sequences_at_once != 1) {
    throw InputError(fmt::format("--sequences-at-once {}: the CPU backend computes one at a time",
                                 problem.workload.sequences_at_once),
                     "leave it out");
  }
}

std::string attention_to_train_with(const std::optional<ResumePoint>& point) {
  const std::string wanted = cuda_attention();
  if (!point || std::getenv("SPILLWAY_CUDA_ATTENTION") != nullptr) return wanted;
  return TrainingRecord::parse(point->record.identity.training).attention;
}

void require_room(const ModelSpec& model, const fs::path& folder) {
  std::error_code error;
  const std::uintmax_t available = fs::space(folder, error).available;
  const auto needed = static_cast<std::uintmax_t>(model.parameters()) * sizeof(float);
  if (error || needed <= available) return;
  throw MachineError(fmt::format("the trained weights need {}, there is {} in {}",
                                 format_bytes(static_cast<double>(needed)),
                                 format_bytes(static_cast<double>(available)), folder.string()),
                     "free space there, name another --run, or add --no-export");
}

}  // namespace spillway::cli
