#include "base/directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "base/errors.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

fs::path absolute_of(const fs::path& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  return error ? fs::absolute(path, error).lexically_normal() : canonical;
}

[[noreturn]] void refuse_link(const fs::path& path) {
  throw InputError(path.string() + " is a symbolic link: it is not followed, and left as it is",
                   "remove the link, or name the place it leads to");
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

std::string read_to_end(const FileDescriptor& file, const fs::path& path,
                        std::uint64_t most_bytes) {
  std::string text;
  constexpr std::size_t piece = 1 << 16;
  while (true) {
    const std::size_t size = text.size();
    if (size > most_bytes) {
      throw InputError(fmt::format("{} is longer than the {} bytes that such a file may have",
                                   path.string(), most_bytes),
                       "it is damaged, or a file of another kind");
    }
    text.resize(size + piece);
    const ssize_t got = ::read(file.get(), text.data() + size, piece);
    const int error_number = errno;
    text.resize(size + static_cast<std::size_t>(got > 0 ? got : 0));
    if (got == 0) return text;
    if (got < 0 && error_number != EINTR)
      throw MachineError::from_errno("cannot read " + path.string(), error_number);
  }
}

}  // namespace

void require_plain_file(int descriptor, const fs::path& path, FileUse use) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    throw MachineError::from_errno("cannot look at " + path.string(), errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw InputError(fmt::format("{} is {}, not a file", path.string(), kind_of(status.st_mode)),
                     "remove it, or name another place");
  }
  if (use == FileUse::read) return;
  if (status.st_uid != ::geteuid()) {
    throw InputError(fmt::format("{} belongs to another user (uid {}): it is left as it is",
                                 path.string(), status.st_uid),
                     "name a directory of your own");
  }
  if (status.st_nlink > 1) {
    throw InputError(
        fmt::format("{0} has {1} names (hard links): changing it would change the file under its "
                    "other name as well",
                    path.string(), status.st_nlink),
        fmt::format("make it a file of its own: cp {0} {0}.new && mv {0}.new {0}", path.string()));
  }
}

Directory::Directory(const fs::path& path) : path_(absolute_of(path)) {
  open_at(AT_FDCWD, path.empty() ? "." : path.c_str(), 0);
}

Directory::Directory(const Directory& parent, const std::string& name)
    : path_(parent.path_ / name) {
  open_at(parent.descriptor(), name.c_str(), O_NOFOLLOW);
}

void Directory::open_at(int parent, const char* name, int flags) {
  FileDescriptor opened(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags));
  if (!opened.valid()) {
    const int error_number = errno;
    struct stat status {};
    if ((flags & O_NOFOLLOW) != 0 && ::fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISLNK(status.st_mode)) {
      refuse_link(path_);
    }
    if (error_number == ENOENT || error_number == ENOTDIR) {
      throw InputError(fmt::format("{}: there is no such directory", path_.string()),
                       "create it, or check that its drive is mounted");
    }
    throw MachineError::from_errno("cannot open the directory " + path_.string(), error_number);
  }
  descriptor_ = std::make_shared<const FileDescriptor>(std::move(opened));
}

std::optional<FileDescriptor> Directory::open(const std::string& name, int flags,
                                              FileUse use) const {
  // O_NONBLOCK: opening a FIFO does not wait for its other end.
  FileDescriptor file(
      ::openat(descriptor(), name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) {
    const int error_number = errno;
    if (error_number == ENOENT) return std::nullopt;
    if (const auto found = status(name)) {
      if (S_ISLNK(found->st_mode)) refuse_link(path_of(name));
      if (!S_ISREG(found->st_mode)) {
        throw InputError(
            fmt::format("{} is {}, not a file", path_of(name).string(), kind_of(found->st_mode)),
            "remove it, or name another place");
      }
    }
    throw MachineError::from_errno("cannot open " + path_of(name).string(), error_number);
  }
  require_plain_file(file.get(), path_of(name), use);
  // Only for opening; reads and writes are to be complete.
  ::fcntl(file.get(), F_SETFL, ::fcntl(file.get(), F_GETFL) & ~O_NONBLOCK);
  return file;
}

std::optional<FileDescriptor> Directory::create(const std::string& name, mode_t mode) const {
  FileDescriptor file(::openat(descriptor(), name.c_str(),
                               O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (file.valid()) return file;
  if (errno == EEXIST) return std::nullopt;
  throw MachineError::from_errno("cannot create " + path_of(name).string(), errno);
}

std::optional<std::string> Directory::read(const std::string& name,
                                           std::uint64_t most_bytes) const {
  const std::optional<FileDescriptor> file = open(name, O_RDONLY, FileUse::read);
  if (!file) return std::nullopt;
  return read_to_end(*file, path_of(name), most_bytes);
}

std::optional<struct ::stat> Directory::status(const std::string& name) const {
  struct stat found {};
  if (::fstatat(descriptor(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0) return found;
  if (errno == ENOENT) return std::nullopt;
  throw MachineError::from_errno("cannot look at " + path_of(name).string(), errno);
}

bool Directory::leads_to(const std::string& name, int file) const {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file, &opened) == 0 &&
         ::fstatat(descriptor(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

bool Directory::is_empty() const {
  // A descriptor of its own: the position in the directory belongs to the open directory.
  const int own = ::openat(descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = own < 0 ? nullptr : ::fdopendir(own);
  if (stream == nullptr) {
    const int error_number = errno;
    if (own >= 0) ::close(own);
    throw MachineError::from_errno("cannot list " + path_.string(), error_number);
  }
  bool empty = true;
  while (const dirent* const entry = ::readdir(stream)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") empty = false;
  }
  ::closedir(stream);
  return empty;
}

void Directory::rename(const std::string& from, const std::string& to) const {
  if (::renameat(descriptor(), from.c_str(), descriptor(), to.c_str()) == 0) return;
  throw MachineError::from_errno(fmt::format("cannot rename {} to {}", path_of(from).string(), to),
                                 errno);
}

void Directory::sync() const {
  // EINVAL: a file system whose directories cannot be synced, and need not be.
  if (::fsync(descriptor()) == 0 || errno == EINVAL) return;
  throw MachineError::from_errno("cannot sync the directory " + path_.string(), errno);
}

bool Directory::remove(const std::string& name) const noexcept {
  return ::unlinkat(descriptor(), name.c_str(), 0) == 0;
}

FileDescriptor open_to_read(const fs::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) {
    const int error_number = errno;
    if (error_number == ENOENT || error_number == ENOTDIR) {
      throw InputError(path.string() + ": there is no such file", "check the spelling of the path");
    }
    throw MachineError::from_errno("cannot open " + path.string(), error_number);
  }
  require_plain_file(file.get(), path, FileUse::read);
  ::fcntl(file.get(), F_SETFL, ::fcntl(file.get(), F_GETFL) & ~O_NONBLOCK);
  return file;
}

std::string read_file(const fs::path& path, std::uint64_t most_bytes) {
  return read_to_end(open_to_read(path), path, most_bytes);
}

}  // namespace spillway
