#include "exec/store/store_file.hpp"

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

#include "base/direct_io.hpp"
#include "base/errors.hpp"
#include "base/units.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

StoreFile::StoreFile(Directory directory, std::string name, Open open)
    : directory_(std::move(directory)), name_(std::move(name)), path_(directory_.path_of(name_)) {
  constexpr int attempts = 300;  // with 10 ms between them
  for (int attempt = 0; attempt < attempts; ++attempt) {
    std::optional<FileDescriptor> opened;
    if (open == Open::or_new) opened = directory_.create(name_, 0600);
    const bool created = opened.has_value();
    if (open == Open::to_read) opened = directory_.open(name_, O_RDONLY, FileUse::read);
    if (!created && open != Open::to_read) opened = directory_.open(name_, O_RDWR, FileUse::change);
    if (!opened && open == Open::or_new) continue;  // removed in between
    if (!opened) {
      throw InputError(
          path().string() + " is missing",
          "check that its drive is mounted; the SSD directories of the run are needed, "
          "all and in the same order");
    }
    if (open == Open::to_read) {
      descriptor_ = std::move(*opened);
      return;
    }
    if (::flock(opened->get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) {
        throw MachineError::from_errno("cannot lock " + path().string(), errno,
                                       "the store needs a local file system with flock");
      }
      // A run that was killed a moment ago lets go once the kernel has closed its io_uring.
      if (attempt + 1 < attempts) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      throw MachineError(path().string() + " is in use by another run",
                         "wait until it ends, or give this run directories of its own");
    }
    descriptor_ = std::move(*opened);
    keep_ = !created;
    if (is_linked()) return;
    descriptor_ = FileDescriptor();  // another run removed it before the lock was ours
  }
  throw MachineError("cannot lock " + path().string() + ": it keeps being removed",
                     "give this run directories of its own");
}

StoreFile::~StoreFile() {
  if (!descriptor_.valid()) return;
  // Removed before the lock is given back, so that no other run's file is hit. Emptied and unlocked
  // by hand, because the kernel may hold the open file for a moment longer on behalf of a closed
  // io_uring. Only a file that is still its directory's, and has no other name, is emptied.
  if (!keep_ && directory_.leads_to(name_, descriptor_.get())) {
    directory_.remove(name_);
    struct stat status {};
    if (::fstat(descriptor_.get(), &status) == 0 && status.st_nlink == 0)
      static_cast<void>(::ftruncate(descriptor_.get(), 0));
  }
  ::flock(descriptor_.get(), LOCK_UN);
}

std::optional<StoreHeader> StoreFile::header() const {
  return read_header(descriptor_.get(), path());
}

bool StoreFile::is_empty() const {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) {
    throw MachineError::from_errno("cannot look at " + path().string(), errno);
  }
  return status.st_size == 0;
}

void StoreFile::set_header(const StoreHeader& header) {
  write_header(descriptor_.get(), path(), header);
}

void StoreFile::allocate(std::uint64_t bytes, const StoreHeader& header) {
  SPILLWAY_ASSERT(is_empty() || this->header(), "a file that is not a store's is not emptied");
  if (::ftruncate(descriptor_.get(), 0) != 0) {
    throw MachineError::from_errno("cannot empty " + path().string(), errno);
  }
  // Durable before the blocks are: a file of some size without a header would be nobody's.
  set_header(header);
  int error_number = EINTR;
  while (error_number == EINTR) {
    error_number =
        ::posix_fallocate(descriptor_.get(), 0, static_cast<off_t>(store_header_bytes + bytes));
  }
  if (error_number != 0) {
    throw MachineError::from_errno(
        fmt::format("cannot reserve {} for {}", bytes_text(bytes), path().string()), error_number);
  }
  // The file's blocks and its name survive a power cut from here on.
  if (::fsync(descriptor_.get()) != 0) {
    throw MachineError::from_errno("cannot sync " + path().string(), errno);
  }
  directory_.sync();
}

bool StoreFile::is_linked() const { return directory_.leads_to(name_, descriptor_.get()); }

void StoreFile::require_size(std::uint64_t bytes) const {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) {
    throw MachineError::from_errno("cannot look at " + path().string(), errno);
  }
  const std::uint64_t size = static_cast<std::uint64_t>(status.st_size);
  if (size == store_header_bytes + bytes) return;
  throw MachineError(
      fmt::format("{} holds {} bytes where this run's store has {}", path().string(), size,
                  store_header_bytes + bytes),
      "resume with the model, policy and SSD directories (in the same order) of the first run, or "
      "start afresh");
}

void StoreFile::require_linked() const {
  // By its path as well: a drive that was unmounted with its files open still has them. Where the
  // directory was moved, the kernel knows its path now.
  const auto leads_here = [&](const fs::path& file) {
    struct stat opened {};
    struct stat named {};
    return ::fstat(descriptor_.get(), &opened) == 0 && ::stat(file.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  };
  const auto leads_here_now = [&] {
    std::error_code error;
    const fs::path directory =
        fs::read_symlink(fmt::format("/proc/self/fd/{}", directory_.descriptor()), error);
    return !error && leads_here(directory / name_);
  };
  if (is_linked() && (leads_here(path()) || leads_here_now())) return;
  throw MachineError(path().string() + " is gone from its directory while in use",
                     "was it removed, or its drive unmounted? What is written to it now would be "
                     "lost: mount the drive again, then go on from the last commit with " +
                         Setting{"resume"});
}

std::optional<std::string> StoreFile::try_direct() { return try_direct_io(descriptor_.get()); }

void require_free_space(const std::vector<PlannedFile>& files) {
  struct Volume {
    std::uint64_t needed = 0;
    std::uint64_t available = 0;
    bool known = false;
    std::string directories;
  };
  std::string last;
  std::map<dev_t, Volume> volumes;  // directories on one file system share its room
  for (const PlannedFile& file : files) {
    const std::string directory = file.directory.path().string();
    struct stat status {};
    struct statvfs space {};
    if (::fstat(file.directory.descriptor(), &status) != 0 ||
        ::fstatvfs(file.directory.descriptor(), &space) != 0) {
      throw MachineError::from_errno("cannot look at the free space of " + directory, errno);
    }
    Volume& volume = volumes[status.st_dev];
    if (volume.directories.empty()) {
      volume.known = space.f_blocks > 0;  // ramfs and some network file systems do not say
      volume.available = std::uint64_t{space.f_bavail} * space.f_frsize;
    }
    if (directory != last)
      volume.directories += (volume.directories.empty() ? "" : ", ") + directory;
    last = directory;
    volume.needed += store_header_bytes + file.bytes;
    if (const auto existing = file.directory.status(file.name))
      volume.available +=
          static_cast<std::uint64_t>(existing->st_blocks) * 512;  // st_blocks: 512 B
  }
  for (const auto& [device, volume] : volumes) {
    if (!volume.known || volume.needed <= volume.available) continue;
    throw MachineError(
        fmt::format("the SSD store needs {}, has {} in {}", bytes_text(volume.needed),
                    bytes_text(volume.available), volume.directories),
        "free space there, name directories on other drives, or halve it with " +
            Setting{"durability", "off"});
  }
}

}  // namespace spillway
