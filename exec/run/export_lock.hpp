// RUN/export.lock: what keeps a committed state whole while somebody reads it, also beside a run at
// work.
//
// Who reads holds the lock shared (flock). A run at work asks before it overwrites what was
// committed before its newest commit: only when nobody reads does it go on. So the newest commit
// record that a reader finds once the lock is its own stays whole until the lock is given back.
// Meanwhile training goes on up to its next commit, and for one step more where its updates allow
// that. The kernel gives the lock back when a reader ends, however it ends.
#pragma once

#include <optional>

#include "base/directory.hpp"

namespace spillway {

class ExportLock {
 public:
  static constexpr const char* file_name = "export.lock";

  // Makes the file where it is missing. Throws InputError, MachineError.
  explicit ExportLock(const Directory& folder);
  // Held to read, until it goes. In a folder that has no such file, and cannot be given one, no run
  // is at work: there is nothing to hold.
  static std::optional<ExportLock> to_read(const Directory& folder);

  // Held, until it goes, by what is about to remove the state: who wants to read waits meanwhile.
  // Throws MachineError where somebody reads. Nothing as above.
  static std::optional<ExportLock> to_remove(const Directory& folder);

  // Whether nobody holds it to read now. Asked by the run at work.
  bool nobody_reads();

 private:
  FileDescriptor file_;
};

}  // namespace spillway
