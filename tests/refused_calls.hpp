// System calls refused as a container's seccomp profile refuses them.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <iterator>

namespace spillway::test {

inline bool refuse_by(sock_fprog filter) {
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// From here on the call fails with `error_number` on this thread, and in threads and processes that
// it starts; there is no way back. 0: the call returns 0, as if it had done what it has not.
// Returns whether the kernel takes such filters. May be called between fork and exec.
inline bool refuse_call(long call, unsigned error_number) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error_number),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  return refuse_by({std::size(program), program});
}

// The same of reads by pread of exactly so many bytes.
inline bool refuse_pread_of(unsigned bytes, unsigned error_number) {
  constexpr unsigned count = offsetof(seccomp_data, args) + 2 * sizeof(__u64);  // its lower half
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, count),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, bytes, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error_number),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  return refuse_by({std::size(program), program});
}

inline bool refuse_io_uring(unsigned error_number) {
  return refuse_call(SYS_io_uring_setup, error_number);
}

}  // namespace spillway::test
