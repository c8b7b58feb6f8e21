// RUN/run.json: what a run was started with and where its store is, so that `--resume` needs no
// other option. Always whole: a new version takes the place of the old one once it is durable.
#pragma once

#include <CLI/CLI.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "exec/training_store.hpp"

namespace spillway::cli {

struct SavedRun {
  std::map<std::string, std::vector<std::string>> options;  // by name, without dashes; as given
  std::optional<StoreLocation> store;  // none: nothing is committed yet, or the run is complete
  bool complete = false;
  // Why there is nothing to go on from, for people; empty while there is, or may be.
  std::string not_resumable;

  // Throws InputError when `folder` holds no run.
  static SavedRun load(const std::filesystem::path& folder);
  // Throws MachineError; what was saved before is then still there.
  void save(const std::filesystem::path& folder) const;
};

inline constexpr const char* saved_run_file = "run.json";

// The options given to a command, but for those in `without`; paths made absolute.
std::map<std::string, std::vector<std::string>> options_given(
    const CLI::App& command, const std::vector<std::string>& without,
    const std::vector<std::string>& paths);

// Gives the command the saved options that were not given on the command line.
void apply_saved(CLI::App& command, const SavedRun& saved);

}  // namespace spillway::cli
