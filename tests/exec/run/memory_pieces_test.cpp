#include "exec/run/memory_pieces.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <vector>

using namespace spillway;

TEST_CASE("Every byte is worked on once, in pieces, and progress ends with all of it") {
  std::vector<std::byte> memory(1000, std::byte{0});
  std::vector<std::uint64_t> told;
  in_pieces(
      memory, 4,
      [](std::span<std::byte> piece) {
        for (std::byte& byte : piece) byte = std::byte(std::to_integer<int>(byte) + 1);
      },
      [&](std::uint64_t done, std::uint64_t total) {
        CHECK(total == 1000);
        told.push_back(done);
      },
      300);
  CHECK(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{1}; }));
  REQUIRE(told.size() == 4);
  CHECK(std::is_sorted(told.begin(), told.end()));
  CHECK(told.back() == 1000);
}

TEST_CASE("The first failure ends work on memory, and is what the caller gets") {
  std::vector<std::byte> memory(1000);
  int begun = 0;
  const auto work = [&](std::span<std::byte>) {
    ++begun;
    throw std::runtime_error("no more");
  };
  CHECK_THROWS_WITH(in_pieces(memory, 1, work, {}, 10), "no more");
  CHECK(begun == 1);
  CHECK_NOTHROW(in_pieces({}, 4, work));
}
