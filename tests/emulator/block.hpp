// Runs the blocks of a grid, one after the other, on the calling thread. The threads of a block are
// fibers: each runs until it ends, or waits at a barrier or for its warp.
//
// The order of blocks, and that of threads within a block, comes from a seed: what a missing
// barrier leaves to chance differs from launch to launch. A barrier that not every thread of the
// block reaches, a shuffle that not every lane named in its mask takes part in, and an exception in
// the kernel end the launch with a KernelFailure that says which threads were where.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

namespace emulator {

constexpr int warp_lanes = 32;
constexpr unsigned full_mask = 0xffffffffu;

struct KernelFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Grid {
  std::string kernel;  // its name, for messages
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;  // dynamic
  std::uint64_t seed = 0;
};

// Calls body() once for every thread of every block. Throws KernelFailure.
void run_grid(const Grid& grid, const std::function<void()>& body);

// What follows is called by threads of a kernel.

// Every thread of the block waits here for all others.
void block_barrier(const std::source_location& where);
// The lanes in `mask` wait for each other; each gives `bytes` bytes (the same number, at most
// exchange_bytes) and gets 32 deposits, one after the other in the order of lanes. They stay until
// the calling lane's next exchange. Deposits of lanes that are not in `mask` are all ones.
constexpr std::size_t exchange_bytes = 64;
const void* exchange(unsigned mask, const void* deposit, std::size_t bytes,
                     const std::source_location& where);
// The calling thread waits until another of its block calls wake() with the same key.
void sleep_on(const void* key, const std::source_location& where);
void wake(const void* key);
// Others of the block that are ready may run first.
void dawdle();
// The next number of the block's own generator, which follows from the launch's seed.
std::uint64_t next_random();
// The calling thread's place in its warp, and the lanes that this has: fewer than 32 at the end of
// a block whose size is no multiple.
int lane_index();
unsigned existing_lanes();
// Ends the launch: "kernel, block, thread: what".
[[noreturn]] void fail_thread(const std::string& what);
// The block's dynamic shared memory; its size.
std::byte* dynamic_shared();
std::size_t dynamic_shared_bytes();
// Differs from one run of a block to the next on the same thread of the host.
std::uint64_t block_run();

}  // namespace emulator
