// The options of a run, as it saves them for a later --resume (exec/run/saved_run.hpp).
#pragma once

#include <CLI/CLI.hpp>

#include <map>
#include <string>
#include <vector>

namespace spillway::cli {

using SavedOptions = std::map<std::string, std::vector<std::string>>;

// The options given to a command, of those that a run keeps; paths that exist made absolute.
SavedOptions options_given(const CLI::App& command, const std::vector<std::string>& paths);

// Gives the command the saved options that were not given on the command line. What a run does not
// keep is not taken from its file either, which somebody else may have written: how it reports, and
// what may replace or remove anything.
void apply_saved(CLI::App& command, const SavedOptions& saved);

}  // namespace spillway::cli
