// One file of the SSD store: locked, with a header that says whose it is, preallocated, opened for
// unbuffered I/O where the file system can.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/directory.hpp"
#include "exec/store/store_header.hpp"

namespace spillway {

class StoreFile {
 public:
  // `to_read`: beside a run that may be at work, without its lock.
  enum class Open : std::uint8_t { existing, or_new, to_read };

  // Opens, or creates, a file and locks it against other runs, without changing its contents. A
  // file that was created here is removed at the end unless set_keep(true) is called, one that was
  // there before is kept unless set_keep(false) is. Throws InputError (a link, no regular file,
  // another user's, a file with several names, missing), MachineError (in use by another run,
  // permissions).
  StoreFile(Directory directory, std::string name, Open open);
  StoreFile(StoreFile&&) = default;
  StoreFile& operator=(StoreFile&&) = delete;
  ~StoreFile();  // removes the file unless kept

  // Whose it is; nothing where it is new, empty, or no file of a store.
  std::optional<StoreHeader> header() const;
  bool is_empty() const;
  // Empties the file, says whose it is, and gives it `bytes` real blocks after the header, which
  // read as zero. A file that has no header must be empty. Throws MachineError (ENOSPC ...).
  void allocate(std::uint64_t bytes, const StoreHeader& header);
  void set_header(const StoreHeader& header);
  // Throws MachineError unless the file has `bytes` after its header.
  void require_size(std::uint64_t bytes) const;
  // Throws MachineError when the path no longer leads to the open file.
  void require_linked() const;
  // Switches to unbuffered I/O (O_DIRECT). Otherwise returns why that is not possible here.
  std::optional<std::string> try_direct();
  void set_keep(bool keep) { keep_ = keep; }

  int descriptor() const { return descriptor_.get(); }
  const Directory& directory() const { return directory_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  bool is_linked() const;

  Directory directory_;
  std::string name_;
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  bool keep_ = true;
};

// A file that is to be made: where, and its bytes.
struct PlannedFile {
  Directory directory;
  std::string name;
  std::uint64_t bytes = 0;
};

// Throws MachineError "needs X, has Y in DIR" unless each file system has room for its files
// together. Blocks that an existing file holds count as free.
void require_free_space(const std::vector<PlannedFile>& files);

}  // namespace spillway
