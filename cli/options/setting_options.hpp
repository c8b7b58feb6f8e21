// Settings of a training (experiments/train/train_settings.hpp) as options of the command line.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "experiments/train/train_settings.hpp"

namespace spillway::cli {

// What `--help` says of the setting; other commands have options of the same names.
std::string setting_help(const std::string& key);

// Adds the option of a setting. The parser checks its form; the texts that are given are left with
// the parser.
void add_setting_option(CLI::App& command, const TrainSetting& setting);

}  // namespace spillway::cli
