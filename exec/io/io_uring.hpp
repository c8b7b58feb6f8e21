// io_uring: the ring of the kernel's own (exec/io/io_ring.hpp), and whether it is to be had.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/errors.hpp"
#include "exec/io/io_ring.hpp"

namespace spillway {

// An io_uring of `depth` requests over these open files, to be used only by the thread that makes
// it (the kernel then completes requests on this thread, when it asks: SINGLE_ISSUER |
// DEFER_TASKRUN, Linux 6.1; older kernels get COOP_TASKRUN or no flags). Throws MachineError when
// io_uring is not to be had.
std::unique_ptr<IoRing> make_io_uring(std::span<const int> files, unsigned depth);

// Why io_uring cannot be used here.
struct IoUringRefusal {
  std::string why;     // in a few words: "Operation not permitted"
  MachineError error;  // the same with a remedy
};

// Sets up a ring as make_io_uring does, and reads a few bytes through it. Containers and sandboxes
// refuse any of the calls that this takes; a ring that has completed nothing within `limit` counts
// as refused, too.
std::optional<IoUringRefusal> try_io_uring(
    unsigned depth, std::chrono::milliseconds limit = std::chrono::seconds(2));

// What it means that io_uring_setup, or a first request, failed with `error_number`, with a remedy.
MachineError io_uring_setup_error(int error_number);

}  // namespace spillway
