// One file of the SSD store: locked, preallocated, opened for unbuffered I/O where the file system
// can.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/file_descriptor.hpp"

namespace spillway {

class StoreFile {
 public:
  // Opens or creates `path` and locks it against other runs, without changing its contents. A file
  // that was created here is removed at the end unless set_keep(true) is called, one that was there
  // before is kept unless set_keep(false) is. Throws MachineError (in use by another run,
  // permissions, ...).
  explicit StoreFile(std::filesystem::path path);
  StoreFile(StoreFile&&) = default;
  StoreFile& operator=(StoreFile&&) = delete;
  ~StoreFile();  // removes the file unless kept

  // Empties the file and gives it `bytes` real blocks that read as zero. Throws MachineError
  // (ENOSPC ...).
  void allocate(std::uint64_t bytes);
  // Throws MachineError unless the file is `bytes` long.
  void require_size(std::uint64_t bytes) const;
  // Throws MachineError when the path no longer leads to the open file.
  void require_linked() const;
  // Switches to unbuffered I/O (O_DIRECT). Otherwise returns why that is not possible here.
  std::optional<std::string> try_direct();
  void set_keep(bool keep) { keep_ = keep; }

  int descriptor() const { return descriptor_.get(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  bool keep_ = true;
};

// Throws MachineError "needs X, has Y in DIR" unless each file system has room for its files
// together. `files` are pairs of a path and its bytes; blocks that an existing file holds count as
// free. Throws InputError when a directory does not exist.
void require_free_space(const std::vector<std::pair<std::filesystem::path, std::uint64_t>>& files);

}  // namespace spillway
