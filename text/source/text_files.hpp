// The files that --data names: found without following what leads out of a folder, opened without
// ever waiting for one.
//
// A folder of data may be anybody's: nothing in it makes the program read a file outside of it,
// wait for a pipe or touch a device, also not where it is changed while it is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"

namespace spillway {

// What was found but not taken, and why.
struct SkippedFiles {
  struct One {
    std::filesystem::path path;
    std::string reason;  // "hidden", "a zip archive"
    // The path in characters that a terminal can show; other bytes by their number.
    std::string shown() const;
  };
  static constexpr std::size_t most_named = 5;

  std::uint64_t count = 0;
  std::vector<One> first;  // at most most_named of them

  void add(const std::filesystem::path& path, const std::string& reason);
  // "3 skipped: a.zip (a zip archive), ..."; empty where nothing was skipped.
  std::string text() const;
};

class TextFile {
 public:
  // `path` as the user named it.
  TextFile(std::filesystem::path path, std::uint64_t bytes)
      : path_(std::move(path)), bytes_(bytes) {}
  // Found at `below` in `folder`, which nothing but regular folders leads to.
  TextFile(std::filesystem::path path, std::uint64_t bytes,
           std::shared_ptr<const FileDescriptor> folder, std::filesystem::path below)
      : path_(std::move(path)),
        bytes_(bytes),
        folder_(std::move(folder)),
        below_(std::move(below)) {}

  const std::filesystem::path& path() const { return path_; }
  bool named() const { return folder_ == nullptr; }
  // When it was found; it may have changed since.
  std::uint64_t bytes() const { return bytes_; }
  // Opened for reading, in a way that neither waits nor, for one that was found, follows links.
  // Where it is not a regular file now: `why_not` says what it is, and the descriptor is invalid.
  // Throws InputError when it cannot be opened.
  FileDescriptor open(std::string& why_not) const;

 private:
  std::filesystem::path path_;
  std::uint64_t bytes_ = 0;
  std::shared_ptr<const FileDescriptor> folder_;
  std::filesystem::path below_;
};

// The files named by `paths` and all below folders among them, sorted by path, each once. Below a
// folder, hidden entries, links that lead out of it and whatever is neither file nor folder are
// skipped. Throws InputError naming the path: missing, unreadable, or named and neither file nor
// folder.
std::vector<TextFile> find_text_files(const std::vector<std::filesystem::path>& paths,
                                      SkippedFiles& skipped);

// Says why a path cannot be read, with a hint.
[[noreturn]] void refuse_to_read(const std::filesystem::path& path, int error_number);

}  // namespace spillway
