#include "exec/run/export_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "base/errors.hpp"

namespace spillway {

ExportLock::ExportLock(const Directory& folder) {
  std::optional<FileDescriptor> file = folder.create(file_name, 0600);
  if (!file) file = folder.open(file_name, O_RDWR, FileUse::change);
  if (!file)
    throw MachineError(folder.path_of(file_name).string() + " keeps being removed",
                       "is another program at work in this folder?");
  file_ = std::move(*file);
}

namespace {

std::optional<ExportLock> lock_of(const Directory& folder) {
  try {
    return std::make_optional<ExportLock>(folder);
  } catch (const MachineError&) {
    return {};
  }
}

}  // namespace

std::optional<ExportLock> ExportLock::to_remove(const Directory& folder) {
  std::optional<ExportLock> lock = lock_of(folder);
  if (!lock || ::flock(lock->file_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
    return lock;
  const std::string path = folder.path_of(file_name).string();
  throw MachineError("an export reads what the run in " + folder.path().string() +
                         " has committed: nothing was removed",
                     "wait for its end; `fuser " + path + "` names it");
}

std::optional<ExportLock> ExportLock::to_read(const Directory& folder) {
  std::optional<ExportLock> lock = lock_of(folder);
  if (!lock) return {};
  int result = -1;
  do {
    result = ::flock(lock->file_.get(), LOCK_SH);
  } while (result != 0 && errno == EINTR);
  if (result != 0)
    throw MachineError::from_errno("cannot lock " + folder.path_of(file_name).string(), errno,
                                   "a run's folder needs a file system with flock");
  return lock;
}

bool ExportLock::nobody_reads() {
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  ::flock(file_.get(), LOCK_UN);
  return true;
}

}  // namespace spillway
