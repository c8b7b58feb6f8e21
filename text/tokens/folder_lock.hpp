// A folder that one program writes to at a time.
#pragma once

#include <functional>

#include "base/directory.hpp"

namespace spillway {

class FolderLock {
 public:
  // Waits until no other program has it; `waiting` (may be empty) is called once where that is not
  // at once, `stop` (may be empty) a few times a second. Without the lock where `stop` said so.
  // Throws MachineError where the file system has no locks.
  FolderLock(const Directory& folder, const std::function<void()>& waiting,
             const std::function<bool()>& stop);

  bool held() const { return file_.valid(); }

 private:
  FileDescriptor file_;  // the lock goes with it
};

}  // namespace spillway
