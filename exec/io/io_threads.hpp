// A ring (exec/io/io_ring.hpp) over a few threads that call pread, pwrite and fdatasync, for
// kernels and containers that refuse io_uring.
//
// Requests are taken by the threads in the order in which they were queued, and end in any order.
// Results are the kernel's own: short transfers, EINTR and EAGAIN are passed on. A sync is
// fdatasync of its file: what was completed before it was queued is then durable. Allocates
// nothing after it was made. Ending it waits for what was handed over.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "exec/io/io_ring.hpp"

namespace spillway {

// Threads of a ring of this depth.
unsigned io_threads_of(unsigned depth);

// A ring of `depth` requests over these open files. Where only some threads can be started a
// warning says so; where none can, the thread that uses the ring does its requests itself, one by
// one.
std::unique_ptr<IoRing> make_io_threads(std::span<const int> files, unsigned depth);

// Does one request, and returns the bytes transferred or -errno. Called by several threads at once.
using IoCall = std::function<std::int32_t(const IoRequest& request)>;

// The same ring with other calls than the kernel's: for tests.
std::unique_ptr<IoRing> make_io_threads(IoCall call, unsigned depth);

}  // namespace spillway
