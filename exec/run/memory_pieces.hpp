// Work on large runs of memory, piece by piece, shared by a few threads: first touch, page-locking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace spillway {

// Bytes that are done, of how many. Calls never overlap, but come from any thread.
using MemoryProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// The piece is large enough that handing it out costs nothing beside the work on it.
inline constexpr std::uint64_t memory_piece_bytes = std::uint64_t{1} << 30;

// Calls `work` once for each run of memory_piece_bytes of `memory`, the last one perhaps shorter,
// on at most `most_threads` threads and no more than there are CPUs, and returns when all are done.
// The first exception ends the work and is thrown here. `progress` may be empty.
void in_pieces(std::span<std::byte> memory, unsigned most_threads,
               const std::function<void(std::span<std::byte> piece)>& work,
               const MemoryProgress& progress = {}, std::uint64_t piece_bytes = memory_piece_bytes);

}  // namespace spillway
