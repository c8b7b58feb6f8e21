#include "text/source/text_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <system_error>
#include <utility>

#include "base/errors.hpp"
#include "text/source/text_content.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr int deepest_folder = 100;
constexpr std::uint64_t most_entries = 10'000'000;

const char* name_of(mode_t mode) {
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a link";
  return "no regular file";
}

std::uint64_t size_in(const struct stat& status) {
  return static_cast<std::uint64_t>(status.st_size);
}

bool is_hidden(const fs::path& below) {
  return std::any_of(below.begin(), below.end(),
                     [](const fs::path& part) { return part.native().starts_with('.'); });
}

// Where an open file or folder lies now; empty where the system does not say.
std::string place_of(int descriptor) {
  char place[PATH_MAX];
  const ssize_t length =
      ::readlink(fmt::format("/proc/self/fd/{}", descriptor).c_str(), place, sizeof place);
  return length > 0 && static_cast<std::size_t>(length) < sizeof place
             ? std::string(place, static_cast<std::size_t>(length))
             : "";
}

// The names in a folder, sorted.
std::vector<std::string> names_in(int folder, const fs::path& path) {
  const int descriptor = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) refuse_to_read(path, errno);
  struct Closer {
    void operator()(DIR* directory) const { ::closedir(directory); }
  };
  const std::unique_ptr<DIR, Closer> directory(::fdopendir(descriptor));
  if (!directory) {
    const int error_number = errno;
    ::close(descriptor);
    refuse_to_read(path, error_number);
  }
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) refuse_to_read(path, errno);
  std::sort(names.begin(), names.end());
  return names;
}

// Finds the files below one folder.
class Walk {
 public:
  Walk(const fs::path& path, std::vector<TextFile>& files, SkippedFiles& skipped)
      : path_(path),
        root_(std::make_shared<FileDescriptor>(
            ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))),
        files_(files),
        skipped_(skipped) {
    if (!root_->valid()) refuse_to_read(path, errno);
    place_ = place_of(root_->get());
  }

  void run() { folder(root_->get(), "", 0); }

 private:
  fs::path path_of(const fs::path& below) const { return (path_ / below).lexically_normal(); }

  void folder(int descriptor, const fs::path& below, int depth) {
    for (const std::string& name : names_in(descriptor, path_of(below))) {
      if (++entries_ > most_entries) {
        throw InputError(
            fmt::format("{} holds more than {} files and folders", path_.string(), most_entries),
            "name the folders with the text in them");
      }
      entry(descriptor, name, below / name, depth);
    }
  }

  void entry(int parent, const std::string& name, const fs::path& below, int depth) {
    if (name.starts_with('.')) return skip(below, "hidden");
    struct stat status {};
    if (::fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) return;  // it has gone in this moment
      refuse_to_read(path_of(below), errno);
    }
    if (S_ISREG(status.st_mode)) {
      files_.emplace_back(path_of(below), size_in(status), root_, below);
    } else if (S_ISLNK(status.st_mode)) {
      link(parent, name, below);
    } else if (!S_ISDIR(status.st_mode)) {
      skip(below, name_of(status.st_mode));
    } else if (depth == deepest_folder) {
      skip(below, fmt::format("more than {} folders deep", deepest_folder));
    } else {
      const FileDescriptor inner(
          ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (inner.valid()) return folder(inner.get(), below, depth + 1);
      if (errno == ENOENT) return;
      if (errno == ELOOP || errno == ENOTDIR) return skip(below, "changed while it was read");
      refuse_to_read(path_of(below), errno);
    }
  }

  // A link to a file of this folder is that file by another name; every other one is skipped. What
  // it leads to is only looked at here (O_PATH opens nothing), and opened later by its own place.
  void link(int parent, const std::string& name, const fs::path& below) {
    const FileDescriptor target(::openat(parent, name.c_str(), O_PATH | O_CLOEXEC));
    if (!target.valid()) return skip(below, "a link to nothing that can be read");
    struct stat status {};
    if (::fstat(target.get(), &status) != 0) return skip(below, "a link");
    if (!S_ISREG(status.st_mode))
      return skip(below, fmt::format("a link to {}", name_of(status.st_mode)));
    const std::string place = place_of(target.get());
    const std::string inside = place_ == "/" ? place_ : place_ + "/";
    if (place_.empty() || !place.starts_with(inside))
      return skip(below, "a link out of the folder");
    const fs::path own = place.substr(inside.size());
    if (is_hidden(own)) return skip(below, "a link to a hidden file");
    files_.emplace_back(path_of(below), size_in(status), root_, own);
  }

  void skip(const fs::path& below, const std::string& reason) {
    skipped_.add(path_of(below), reason);
  }

  fs::path path_;
  std::shared_ptr<const FileDescriptor> root_;
  std::string place_;  // of root_, without links
  std::vector<TextFile>& files_;
  SkippedFiles& skipped_;
  std::uint64_t entries_ = 0;
};

}  // namespace

void refuse_to_read(const fs::path& path, int error_number) {
  const std::error_code error(error_number, std::generic_category());
  throw InputError("cannot read " + path.string() + ": " + error.message(),
                   error == std::errc::permission_denied
                       ? "check the permissions of the file and its folders"
                       : "check the spelling of the path");
}

void SkippedFiles::add(const fs::path& path, const std::string& reason) {
  ++count;
  if (first.size() < most_named) first.push_back({path, reason});
}

std::string SkippedFiles::One::shown() const {
  const std::string& text = path.native();
  TextContent content;
  content.add({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  const bool is_utf8 = content.all_characters();
  std::string result;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 0x20 && byte != 0x7f && (byte < 0x80 || is_utf8))
      result += character;
    else
      result += fmt::format("\\x{:02x}", byte);
  }
  return result;
}

std::string SkippedFiles::text() const {
  if (count == 0) return "";
  std::string result = fmt::format("{} skipped:", count);
  for (const One& one : first) {
    result += fmt::format("{} {} ({})", &one == first.data() ? "" : ",", one.shown(), one.reason);
  }
  return count > first.size() ? result + ", ..." : result;
}

FileDescriptor TextFile::open(std::string& why_not) const {
  constexpr int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  FileDescriptor file;
  if (named()) {
    file = FileDescriptor(::open(path_.c_str(), flags));
  } else {
    // Folder by folder, so that none of them is a link.
    FileDescriptor folder;
    int parent = folder_->get();
    for (const fs::path& part : below_.parent_path()) {
      folder = FileDescriptor(
          ::openat(parent, part.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      parent = folder.get();
      if (!folder.valid()) break;
    }
    if (parent >= 0)
      file = FileDescriptor(::openat(parent, below_.filename().c_str(), flags | O_NOFOLLOW));
  }
  if (!file.valid()) {
    // ENXIO: a socket.
    if (!named() && (errno == ELOOP || errno == ENOTDIR || errno == ENOENT || errno == ENXIO)) {
      why_not = "changed while it was read";
      return {};
    }
    refuse_to_read(path_, errno);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) refuse_to_read(path_, errno);
  if (S_ISREG(status.st_mode)) return file;
  why_not = name_of(status.st_mode);
  return {};
}

std::vector<TextFile> find_text_files(const std::vector<fs::path>& paths, SkippedFiles& skipped) {
  std::vector<TextFile> files;
  std::set<std::pair<dev_t, ino_t>> folders;  // each is walked once, also where it is named twice
  for (const fs::path& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) refuse_to_read(path, errno);
    if (S_ISREG(status.st_mode)) {
      files.emplace_back(path.lexically_normal(), size_in(status));
    } else if (S_ISDIR(status.st_mode)) {
      if (!folders.insert({status.st_dev, status.st_ino}).second) continue;
      Walk(path, files, skipped).run();
    } else {
      throw InputError(fmt::format("{} is neither a file nor a folder but {}", path.string(),
                                   name_of(status.st_mode)),
                       "name text files or folders");
    }
  }
  // One that was both named and found counts as named.
  std::stable_sort(files.begin(), files.end(), [](const TextFile& a, const TextFile& b) {
    return a.path() == b.path() ? a.named() && !b.named() : a.path() < b.path();
  });
  files.erase(
      std::unique(files.begin(), files.end(),
                  [](const TextFile& a, const TextFile& b) { return a.path() == b.path(); }),
      files.end());
  return files;
}

}  // namespace spillway
