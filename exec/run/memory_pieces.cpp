#include "exec/run/memory_pieces.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/errors.hpp"

namespace spillway {

void in_pieces(std::span<std::byte> memory, unsigned most_threads,
               const std::function<void(std::span<std::byte> piece)>& work,
               const MemoryProgress& progress, std::uint64_t piece_bytes) {
  SPILLWAY_ASSERT(piece_bytes > 0 && most_threads > 0);
  const std::uint64_t pieces = (memory.size() + piece_bytes - 1) / piece_bytes;
  std::atomic<std::uint64_t> next{0};
  std::mutex mutex;
  std::uint64_t done = 0;      // bytes; with the mutex held
  std::exception_ptr failure;  // the first; with the mutex held
  const auto take_pieces = [&] {
    for (std::uint64_t piece = next++; piece < pieces; piece = next++) {
      const std::uint64_t first = piece * piece_bytes;
      const std::uint64_t bytes = std::min<std::uint64_t>(piece_bytes, memory.size() - first);
      try {
        work(memory.subspan(first, bytes));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = pieces;
        return;
      }
      const std::lock_guard lock(mutex);
      done += bytes;
      if (progress) progress(done, memory.size());
    }
  };
  const std::uint64_t threads = std::min<std::uint64_t>(
      {pieces, most_threads, std::max(1u, std::thread::hardware_concurrency())});
  {
    std::vector<std::jthread> helpers;
    for (std::uint64_t i = 1; i < threads; ++i) helpers.emplace_back(take_pieces);
    take_pieces();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace spillway
