// A folder that takes its name only when all in it is written: until commit() it has a random,
// hidden name beside its place, and is removed where anything fails.
//
// While it is written its process holds a lock on it (flock). So what a killed program left behind
// is known, and removed by whoever next makes a folder of that name, or of one that differs in its
// number only (step-100, step-200), in the same place.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/directory.hpp"

namespace spillway {

class NewFolder {
 public:
  // Throws InputError where something lies at `path`, or there is no folder to put it into,
  // MachineError where it cannot be made.
  explicit NewFolder(const std::filesystem::path& path);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();

  const Directory& directory() const { return *directory_; }
  // Durable from the return on. Throws MachineError. Once.
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  std::optional<Directory> directory_;  // locked
};

// Removes what killed programs have left of NewFolders called `name`, or alike but for their
// number.
void remove_unfinished_folders(const Directory& parent, const std::string& name) noexcept;

}  // namespace spillway
