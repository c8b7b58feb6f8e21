// A config file to begin with: what suits a model and its data, with every other setting beside it,
// commented out.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/train/training_job.hpp"

namespace spillway {

// The settings that a training of this model (a name or a path) on these data (as the setting
// `data` has them; none: Spillway's own text) begins with. The data is opened, and tokenized where
// it is not yet. `machine`, `tokenizer`: empty where nothing is said of them. Throws InputError.
GivenSettings starting_settings(const std::string& model, const std::vector<std::string>& data,
                                const std::string& machine, const std::string& tokenizer,
                                const DataListener& listener);

// The file, in a folder (absolute). `plan`: lines on the plan that is chosen with these settings.
std::string starting_config_text(const GivenSettings& settings, const std::filesystem::path& folder,
                                 const std::string& plan);

}  // namespace spillway
