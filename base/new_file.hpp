// A file that takes its name only when it is complete: its bytes go to a file of a random name in
// the same directory, which commit() syncs and renames. Until then, and where anything fails, what
// was there before stays as it was.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/directory.hpp"

namespace spillway {

// Whether a file that a new one is to replace is of the same kind, from its first bytes (64 KiB).
struct ReplaceOnly {
  std::string what;  // "a trace of Spillway's", for the refusal
  std::function<bool(std::span<const std::byte> head)> is_one;
};

// Where a new file is to be: a path that the user named, or a name in a directory that is open.
struct FilePlace {
  FilePlace(std::filesystem::path path_of_user) : path(std::move(path_of_user)) {}
  FilePlace(const std::string& path_of_user) : path(path_of_user) {}
  FilePlace(const char* path_of_user) : path(path_of_user) {}
  FilePlace(const Directory& open, const std::string& name)
      : directory(open), path(open.path_of(name)) {}

  std::optional<Directory> directory;  // of the last part of `path`
  std::filesystem::path path;
};

class NewFile {
 public:
  // `mode` is cut by the umask. Throws InputError when `path` is a symbolic link, a directory, a
  // FIFO or the like, a file that is not `only`, or its directory is missing; MachineError when it
  // cannot be created. A character device (/dev/null, /dev/full) is written in place.
  explicit NewFile(const FilePlace& place, mode_t mode = 0666, const ReplaceOnly* only = nullptr);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();  // removes what was not committed

  int descriptor() const { return file_.get(); }
  bool is_device() const { return temporary_.empty(); }
  std::filesystem::path path() const { return directory_.path_of(name_); }

  // Each throws MachineError.
  void write(std::span<const std::byte> bytes);
  void reserve(std::uint64_t bytes);  // disk space, so that a full disk shows now
  void commit();                      // once

 private:
  void make(mode_t mode, const ReplaceOnly* only);

  Directory directory_;
  std::string name_;
  std::string temporary_;  // empty: written in place, or committed
  FileDescriptor file_;
};

// Throws InputError when a NewFile of this place would: to be found out before any work is done.
void require_new_file(const FilePlace& place, const ReplaceOnly* only = nullptr);

}  // namespace spillway
