// Which ring reads and writes the ssd tier: io_uring where it is to be had, else threads. The
// choice changes time, and neither a number nor a byte on the drives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "exec/io/io_ring.hpp"

namespace spillway {

enum class IoMethod : std::uint8_t { automatic, threads, uring };

struct IoChoice {
  IoMethod method = IoMethod::uring;  // never automatic
  std::string io_uring_refused;       // why it is threads where nobody asked for them; else empty
  RingFactory make_ring;
};

// Tries io_uring unless `wanted` is threads. Throws MachineError, with a remedy, where io_uring is
// wanted and refused.
IoChoice choose_io(IoMethod wanted);

// What choose_io(IoMethod::automatic) has found, once for the whole process.
const IoChoice& usual_io();

// A ring of usual_io().
std::unique_ptr<IoRing> make_usual_ring(std::span<const int> files, unsigned depth);

// For a line of text: "io_uring", "16 threads with pread and pwrite (io_uring: Operation not
// permitted)". `depth`: of the rings that are made.
std::string to_text(const IoChoice& choice, unsigned depth);
// The same without the reason.
std::string name_of(const IoChoice& choice, unsigned depth);

}  // namespace spillway
