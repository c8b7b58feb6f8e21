// One run at a time in a folder: RUN/run.lock is locked while it is at work, and says who it is.
// The kernel gives the lock back when the process ends. Where other computers see the folder too,
// its lock may not reach them: there, what is written in the file counts until the run has ended as
// it should.
#pragma once

#include <cstdint>
#include <string>

#include "base/directory.hpp"
#include "exec/run/run_identity.hpp"

namespace spillway {

class RunLock {
 public:
  // `take_over`: also from a run on another computer that has not ended as it should. Throws
  // MachineError naming the one at work.
  // `anew`: the folder has no such file yet.
  RunLock(const Directory& folder, const Surroundings& here, bool take_over, bool anew = false);
  RunLock(RunLock&&) = default;
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();

  static constexpr const char* file_name = "run.lock";

 private:
  FileDescriptor file_;
};

// Whether a run is at work in a folder, for those who only look.
enum class AtWork : std::uint8_t {
  no,
  here,
  elsewhere  // on another computer, or it ended there without saying so
};
AtWork run_at_work(const Directory& folder, const Surroundings& here = this_computer());

}  // namespace spillway
