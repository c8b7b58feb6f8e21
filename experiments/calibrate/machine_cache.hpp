// Machines that were measured briefly, kept for next time in the user's cache folder.
//
// A file is named by a hash of what was measured (`identity`), written whole or not at all,
// readable by its owner only, and never opened or made through a symbolic link. A cache that cannot
// be used costs a measurement, nothing else.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "policies/machine/machine.hpp"

namespace spillway {

// $XDG_CACHE_HOME/spillway, else ~/.cache/spillway; nothing where the environment names neither.
std::optional<std::filesystem::path> user_cache_folder();

class MachineCache {
 public:
  // `identity`: lines of text that say what was measured, of which program.
  MachineCache(std::filesystem::path folder, std::string identity);

  const std::filesystem::path& file() const { return file_; }
  // What was kept; nothing where there is no such file, or it is damaged, not the user's own, or of
  // something else.
  std::optional<Machine> load() const;
  // Returns why it could not be kept; empty where it was. Of the files in the folder the oldest go
  // where there are more than most_files.
  std::string keep(const Machine& machine) const;
  static constexpr std::size_t most_files = 64;

 private:
  std::filesystem::path folder_, file_;
  std::string identity_;
};

}  // namespace spillway
