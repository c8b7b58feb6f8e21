// A thread pool calls every piece exactly once, waits for all of them, and can be used again and
// again.
#include "exec/cpu/thread_pool.hpp"

#include <catch2/catch.hpp>

#include <atomic>
#include <vector>

using namespace spillway;

TEST_CASE("Every piece is worked on exactly once, by any number of threads") {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (const std::int64_t pieces : {0, 1, 2, 5, 64}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(pieces));
      pool.run(pieces, [&](std::int64_t piece) { ++calls[static_cast<std::size_t>(piece)]; });
      // run returns after the last piece, so the counts are final.
      for (const auto& count : calls) CHECK(count == 1);
    }
  }
}

TEST_CASE("Thousands of short runs lose no piece and end") {
  ThreadPool pool(3);
  std::int64_t sum = 0;
  for (int round = 0; round < 5000; ++round) {
    std::int64_t parts[4] = {};
    pool.run(4, [&](std::int64_t piece) { parts[piece] = piece + round; });
    for (const std::int64_t part : parts) sum += part;
  }
  // Sum over rounds of (0 + 1 + 2 + 3) + 4 round.
  CHECK(sum == 5000 * 6 + 4 * (5000LL * 4999 / 2));
}
