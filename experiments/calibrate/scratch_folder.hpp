// A folder of its own for a measurement, removed at the end with what is in it.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/errors.hpp"

namespace spillway {

class ScratchFolder {
 public:
  // In `parent`, under a name that nothing else has. Throws MachineError where that is not
  // possible.
  explicit ScratchFolder(const std::filesystem::path& parent) {
    std::string name = (parent / "spillway-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      if (errno == ENOENT || errno == ENOTDIR)
        throw InputError(parent.string() + " is no folder", "name one that is there");
      throw MachineError::from_errno("cannot create the folder " + name, errno);
    }
    path_ = name;
  }
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace spillway
