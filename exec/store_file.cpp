#include "exec/store_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/io_transfer.hpp"

namespace spillway {

namespace {

std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// Whether the path still leads to the open file: another run may have removed it before we got the
// lock.
bool is_linked(int descriptor, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// The file's blocks and its name survive a power cut from here on.
void make_durable(int descriptor, const std::filesystem::path& path) {
  const FileDescriptor folder(
      ::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: a file system whose folders cannot be synced, and need not be.
  if (::fsync(descriptor) != 0 ||
      (folder.valid() && ::fsync(folder.get()) != 0 && errno != EINVAL)) {
    throw MachineError::from_errno("cannot sync " + path.string(), errno);
  }
}

}  // namespace

StoreFile::StoreFile(std::filesystem::path path) : path_(std::move(path)) {
  constexpr int attempts = 200;  // with 10 ms between them
  for (int attempt = 0; attempt < attempts; ++attempt) {
    FileDescriptor opened(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const bool created = opened.valid();
    if (!created && errno == EEXIST) {
      opened = FileDescriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
      if (!opened.valid() && errno == ENOENT) continue;  // removed in between
    }
    if (!opened.valid()) throw MachineError::from_errno("cannot open " + path_.string(), errno);
    if (::flock(opened.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) {
        throw MachineError::from_errno("cannot lock " + path_.string(), errno,
                                       "the store needs a local file system with flock");
      }
      // A run that was killed a moment ago lets go once the kernel has closed its io_uring.
      if (attempt + 1 < attempts) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      throw MachineError(path_.string() + " is in use by another run",
                         "wait until it ends, or give this run directories of its own");
    }
    if (!is_linked(opened.get(), path_)) continue;
    descriptor_ = std::move(opened);
    keep_ = !created;
    return;
  }
  throw MachineError("cannot lock " + path_.string() + ": it keeps being removed",
                     "give this run directories of its own");
}

StoreFile::~StoreFile() {
  if (!descriptor_.valid()) return;
  // Removed before the lock is given back, so that no other run's file is hit. Emptied and unlocked
  // by hand, because the kernel may hold the open file for a moment longer on behalf of a closed
  // io_uring.
  if (!keep_) {
    ::unlink(path_.c_str());
    static_cast<void>(::ftruncate(descriptor_.get(), 0));
  }
  ::flock(descriptor_.get(), LOCK_UN);
}

void StoreFile::allocate(std::uint64_t bytes) {
  if (::ftruncate(descriptor_.get(), 0) != 0) {
    throw MachineError::from_errno("cannot empty " + path_.string(), errno);
  }
  int error_number = bytes == 0 ? 0 : EINTR;
  while (error_number == EINTR) {
    error_number = ::posix_fallocate(descriptor_.get(), 0, static_cast<off_t>(bytes));
  }
  if (error_number != 0) {
    throw MachineError::from_errno(
        fmt::format("cannot reserve {} for {}", bytes_text(bytes), path_.string()), error_number);
  }
  make_durable(descriptor_.get(), path_);
}

void StoreFile::require_size(std::uint64_t bytes) const {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) {
    throw MachineError::from_errno("cannot look at " + path_.string(), errno);
  }
  if (static_cast<std::uint64_t>(status.st_size) == bytes) return;
  throw MachineError(
      fmt::format("{} holds {} bytes where this run's store has {}", path_.string(), status.st_size,
                  bytes),
      "resume with the model, policy and SSD directories (in the same order) of the first run, or "
      "start afresh");
}

void StoreFile::require_linked() const {
  if (is_linked(descriptor_.get(), path_)) return;
  throw MachineError(path_.string() + " is gone from its directory while in use",
                     "was it removed, or its drive unmounted? what is written to it now would be "
                     "lost: mount the drive again, then go on from the last commit with --resume");
}

std::optional<std::string> StoreFile::try_direct() {
  const int flags = ::fcntl(descriptor_.get(), F_GETFL);
  if (::fcntl(descriptor_.get(), F_SETFL, flags | O_DIRECT) != 0) {
    return std::string(std::strerror(errno));
  }
  // Some file systems take the flag and then refuse the transfer, or need larger blocks than ours.
  alignas(io_alignment) std::array<std::byte, io_alignment> block;
  ssize_t result = -1;
  do {
    result = ::pread(descriptor_.get(), block.data(), block.size(), 0);
  } while (result < 0 && errno == EINTR);
  if (result >= 0) return std::nullopt;
  const int error_number = errno;
  ::fcntl(descriptor_.get(), F_SETFL, flags);
  return std::string(std::strerror(error_number));
}

void require_free_space(const std::vector<std::pair<std::filesystem::path, std::uint64_t>>& files) {
  struct Volume {
    std::uint64_t needed = 0;
    std::uint64_t available = 0;
    bool known = false;
    std::string directories;
  };
  std::string last;
  std::map<dev_t, Volume> volumes;  // directories on one file system share its room
  for (const auto& [path, bytes] : files) {
    const std::string directory = path.parent_path().string();
    struct stat status {};
    if (::stat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      throw InputError("SSD directory " + directory + " does not exist",
                       "create it, or check that the drive is mounted");
    }
    Volume& volume = volumes[status.st_dev];
    if (volume.directories.empty()) {
      struct statvfs space {};
      if (::statvfs(directory.c_str(), &space) != 0) {
        throw MachineError::from_errno("cannot look at the free space of " + directory, errno);
      }
      volume.known = space.f_blocks > 0;  // ramfs and some network file systems do not say
      volume.available = std::uint64_t{space.f_bavail} * space.f_frsize;
    }
    if (directory != last)
      volume.directories += (volume.directories.empty() ? "" : ", ") + directory;
    last = directory;
    volume.needed += bytes;
    struct stat existing {};
    if (::stat(path.c_str(), &existing) == 0) {
      volume.available += static_cast<std::uint64_t>(existing.st_blocks) * 512;  // st_blocks: 512 B
    }
  }
  for (const auto& [device, volume] : volumes) {
    if (!volume.known || volume.needed <= volume.available) continue;
    throw MachineError(
        fmt::format("the SSD store needs {}, has {} in {}", bytes_text(volume.needed),
                    bytes_text(volume.available), volume.directories),
        "free space there, name directories on other drives, or halve it with --durability off");
  }
}

}  // namespace spillway
