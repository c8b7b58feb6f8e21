// RUN/config.toml: a config file (train_config.hpp) that repeats a run, with all that was given to
// it or settled by it. --resume does not read it: run.json is what counts there.
#pragma once

#include <string>

#include "experiments/train/train_settings.hpp"

namespace spillway {

struct RunConfig {
  const GivenSettings& given;
  const TrainSettings& settings;
  const Problem& problem;  // as it is trained
  std::string policy;      // settled
  std::string data_hash;
  bool has_machine = false;  // machine.toml is in the run's folder
};

std::string run_config_text(const RunConfig& run);

}  // namespace spillway
