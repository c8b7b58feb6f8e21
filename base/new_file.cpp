#include "base/new_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/errors.hpp"
#include "base/units.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t head_bytes = std::size_t{1} << 16;

std::string random_name(const std::string& name) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) {
    throw MachineError::from_errno("cannot get random bytes", errno);
  }
  return fmt::format(".{}.partial-{:016x}", name, random);
}

Directory parent_of(const FilePlace& place) {
  if (place.directory) return *place.directory;
  const fs::path parent = place.path.parent_path();
  return Directory(parent.empty() ? fs::path(".") : parent);
}

std::string last_name_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.empty() && name != "." && name != "..") return name;
  throw InputError(path.string() + ": this is a directory", "name a file in it");
}

// Whether a file of this name is a device, written in place.
bool require_replaceable(const Directory& directory, const std::string& name,
                         const ReplaceOnly* only) {
  const auto found = directory.status(name);
  if (!found) return false;
  if (S_ISCHR(found->st_mode)) return true;
  const std::string path = directory.path_of(name).string();
  if (S_ISDIR(found->st_mode)) {
    throw InputError(path + ": this is a directory", "name a file in it");
  }
  // Refuses links, FIFOs and the like. An empty file holds nothing that could be lost.
  const auto file = directory.open(name, O_RDONLY, FileUse::read);
  if (!file || only == nullptr || found->st_size == 0) return false;
  std::vector<std::byte> head(head_bytes);
  const ssize_t got = ::pread(file->get(), head.data(), head.size(), 0);
  if (got < 0) throw MachineError::from_errno("cannot read " + path, errno);
  head.resize(static_cast<std::size_t>(got));
  if (only->is_one(head)) return false;
  throw InputError(
      fmt::format("{} is there already and is not {}: it is left as it is", path, only->what),
      "name another file, or remove that one");
}

}  // namespace

void require_new_file(const FilePlace& place, const ReplaceOnly* only) {
  require_replaceable(parent_of(place), last_name_of(place.path), only);
}

NewFile::NewFile(const FilePlace& place, mode_t mode, const ReplaceOnly* only)
    : directory_(parent_of(place)), name_(last_name_of(place.path)) {
  make(mode, only);
}

void NewFile::make(mode_t mode, const ReplaceOnly* only) {
  if (require_replaceable(directory_, name_, only)) {
    file_ = FileDescriptor(::openat(directory_.descriptor(), name_.c_str(),
                                    O_WRONLY | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC));
    if (!file_.valid()) throw MachineError::from_errno(path().string() + ": cannot open", errno);
    return;
  }
  while (!file_.valid()) {
    std::string name = random_name(name_);
    if (auto created = directory_.create(name, mode)) {
      file_ = std::move(*created);
      temporary_ = std::move(name);
    }
  }
}

NewFile::~NewFile() {
  if (!temporary_.empty()) directory_.remove(temporary_);
}

void NewFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw MachineError::from_errno(path().string() + ": cannot write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void NewFile::reserve(std::uint64_t bytes) {
  int error_number = bytes == 0 || is_device() ? 0 : EINTR;
  while (error_number == EINTR) {
    error_number = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(bytes));
  }
  if (error_number == 0) return;
  throw MachineError::from_errno(
      fmt::format("cannot reserve {} for {}", format_bytes(static_cast<double>(bytes)),
                  path().string()),
      error_number);
}

void NewFile::commit() {
  SPILLWAY_ASSERT(file_.valid(), path().string() + ": committed twice");
  // A device cannot be synced, and need not be.
  if (::fsync(file_.get()) != 0 && !(is_device() && (errno == EINVAL || errno == EROFS))) {
    throw MachineError::from_errno(path().string() + ": cannot make the file durable", errno);
  }
  file_ = FileDescriptor();
  if (is_device()) return;
  directory_.rename(temporary_, name_);
  temporary_.clear();
  // The name is durable once the directory is. A file system that cannot sync one has no such
  // promise to give: no failure of the caller's.
  if (::fsync(directory_.descriptor()) != 0 && errno == EIO)
    throw MachineError::from_errno(path().string() + ": cannot make its name durable", errno);
}

}  // namespace spillway
