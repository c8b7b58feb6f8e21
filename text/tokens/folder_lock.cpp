#include "text/tokens/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/errors.hpp"

namespace spillway {

FolderLock::FolderLock(const Directory& folder, const std::function<void()>& waiting,
                       const std::function<bool()>& stop) {
  constexpr const char* name = ".lock";
  FileDescriptor file;
  while (!file.valid()) {
    if (auto made = folder.create(name, 0666))
      file = std::move(*made);
    else if (auto there = folder.open(name, O_RDWR, FileUse::change))
      file = std::move(*there);
  }
  bool told = false;
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK)
      throw MachineError::from_errno("cannot lock " + folder.path().string(), errno);
    if (!told && waiting) waiting();
    told = true;
    if (stop && stop()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  file_ = std::move(file);
}

}  // namespace spillway
