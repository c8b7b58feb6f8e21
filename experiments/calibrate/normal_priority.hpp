// The usual priority of threads for a while.
#pragma once

#include <sched.h>

namespace spillway {

// Takes a thread's real-time priority away, and from those that it starts, until this goes. Compute
// that is not throttled never sleeps: at real-time priority it keeps the kernel's own threads,
// which finish writes, from both cores for tenths of a second.
class NormalPriority {
 public:
  explicit NormalPriority(bool wanted) {
    before_ = ::sched_getscheduler(0);
    changed_ = wanted && before_ != SCHED_OTHER && ::sched_getparam(0, &parameters_) == 0;
    const sched_param none{};
    if (changed_) changed_ = ::sched_setscheduler(0, SCHED_OTHER, &none) == 0;
  }
  ~NormalPriority() {
    if (changed_) ::sched_setscheduler(0, before_, &parameters_);
  }
  NormalPriority(const NormalPriority&) = delete;
  NormalPriority& operator=(const NormalPriority&) = delete;

 private:
  int before_ = SCHED_OTHER;
  sched_param parameters_{};
  bool changed_ = false;
};

}  // namespace spillway
