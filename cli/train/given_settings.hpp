// The options of `train` as settings: what a training is given, and its run keeps.
#pragma once

#include <CLI/CLI.hpp>

#include "experiments/train/train_settings.hpp"

namespace spillway::cli {

// Of the options given to the command those that a run keeps, by the names of their settings.
GivenSettings settings_given(const CLI::App& command);

}  // namespace spillway::cli
