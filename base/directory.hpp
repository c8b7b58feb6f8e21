// A directory, opened once and used by its descriptor: whoever may rename things around it cannot
// make a later access end up somewhere else. And what a file of Spillway's is allowed to be.
//
// No file is opened through a symbolic link, and none that is not a regular file: a FIFO or a
// device under the name of one of ours could hang the program, a link could lead to a file of the
// user's.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/file_descriptor.hpp"

namespace spillway {

// What a file is opened for.
enum class FileUse : std::uint8_t {
  read,   // any regular file
  change  // also: it belongs to this user, and has no second name (hard link) that would change too
};

class Directory {
 public:
  // Follows symbolic links in `path`, which the user named. Throws InputError when there is no such
  // directory, MachineError when it cannot be opened.
  explicit Directory(const std::filesystem::path& path);
  // The directory `name` in `parent`, which must not be a symbolic link.
  Directory(const Directory& parent, const std::string& name);

  const std::filesystem::path& path() const { return path_; }  // absolute, for messages
  int descriptor() const { return descriptor_->get(); }
  std::filesystem::path path_of(const std::string& name) const { return path_ / name; }

  // Opens a file in it; nothing where there is none. `flags`: O_RDONLY, O_RDWR, O_APPEND ... Throws
  // InputError when it is a link or no regular file, or must not be changed (see FileUse),
  // MachineError when it cannot be opened.
  std::optional<FileDescriptor> open(const std::string& name, int flags, FileUse use) const;
  // Makes a new file, open for reading and writing; nothing where the name is taken. `mode` is cut
  // by the umask. Throws MachineError.
  std::optional<FileDescriptor> create(const std::string& name, mode_t mode) const;
  // The whole text of a file; nothing where there is none. Throws as open() does, and InputError
  // when it is longer than `most_bytes`.
  std::optional<std::string> read(const std::string& name, std::uint64_t most_bytes) const;

  // What lies there under this name, links not followed; nothing where nothing does.
  std::optional<struct ::stat> status(const std::string& name) const;
  // Whether `name` still leads to the open file.
  bool leads_to(const std::string& name, int descriptor) const;
  bool is_empty() const;

  // Each throws MachineError.
  void rename(const std::string& from, const std::string& to) const;
  void sync() const;  // names made, changed or removed so far survive a power cut
  // False when it could not be removed.
  bool remove(const std::string& name) const noexcept;

 private:
  void open_at(int parent, const char* name, int flags);

  std::filesystem::path path_;
  std::shared_ptr<const FileDescriptor> descriptor_;  // copies of a Directory share it
};

// Throws InputError unless `descriptor`, opened from `path`, may be used this way.
void require_plain_file(int descriptor, const std::filesystem::path& path, FileUse use);

// Opens a file that the user named, anywhere, for reading: the links in its path are the user's
// own, but what is found must be a regular file. Throws InputError, MachineError.
FileDescriptor open_to_read(const std::filesystem::path& path);
// All of such a file. Throws InputError, too, where it is longer than `most_bytes`.
std::string read_file(const std::filesystem::path& path, std::uint64_t most_bytes);

}  // namespace spillway
