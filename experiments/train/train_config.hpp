// A config file of `spillway train`: TOML, with the settings of a training (train_settings.hpp) as
// its keys, and under [set] keys of the machine and the model.
//
//   model = "gpt2-124m"
//   data = ["chats.jsonl", "text=0.5"]
//   learning_rate = 3e-4
//   [set]
//   ssd.count = 6
//
// Paths are relative to the file's folder, so that both can be moved together.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "exec/run/saved_run.hpp"
#include "experiments/train/train_settings.hpp"

namespace spillway {

// `folder`: absolute. Throws InputError with file:line:column for a key that is unknown (with the
// nearest known ones), a value of another type and one that its setting does not take.
GivenSettings parse_train_config(const std::string& text, const std::string& origin,
                                 const std::filesystem::path& folder);
GivenSettings load_train_config(const std::string& path);

// "KEY=VALUE" of settings: those of the machine and the model (their keys have a dot) stay in
// `set`, the others become settings of their own; without a VALUE, a setting without texts. Throws
// InputError for a setting that is given in both ways.
GivenSettings with_assignments(GivenSettings given);

// What is given above a file: a setting without texts takes the file's back. A data_hash of the
// file is no longer asked for where what decides the data is given, nor is its weights_hash where a
// model is.
GivenSettings above_file(GivenSettings given, GivenSettings of_file);

// Of the settings of a file those that are other than what the run keeps: where it is resumed, they
// alone are given anew.
GivenSettings changed_since(const GivenSettings& of_file, const SavedRun& saved);

// A setting as a line of a file: `key = value`.
std::string config_line(const TrainSetting& setting, const std::vector<std::string>& texts);
// KEY=VALUE of the machine or the model as a line below [set].
std::string override_line(const std::string& assignment);

}  // namespace spillway
