#include "exec/run/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "exec/run/available_memory.hpp"
#include "tests/exec/io_test_support.hpp"

using namespace spillway;
using spillway::test::message_of;

TEST_CASE("an arena is 2 MiB aligned, a multiple of 4096 bytes and in memory from the start") {
  const Arena arena(3'000'001);
  CHECK(arena.size() == 733 * 4096);  // ceil(3000001 / 4096) = 733
  CHECK(reinterpret_cast<std::uintptr_t>(arena.data()) % (2 << 20) == 0);
  std::vector<unsigned char> resident(arena.size() / 4096);
  REQUIRE(::mincore(arena.data(), arena.size(), resident.data()) == 0);
  CHECK(std::all_of(resident.begin(), resident.end(), [](unsigned char page) { return page & 1; }));
}

TEST_CASE("fresh arena memory reads as NaN in fp32 and in bf16") {
  const Arena arena(8192);
  for (std::size_t i = 0; i + 4 <= arena.size(); i += 2) {
    // fp32 at every even address; bf16 is the upper half of an fp32.
    float value = 0;
    std::memcpy(&value, arena.data() + i, sizeof value);
    REQUIRE(std::isnan(value));
    std::uint32_t half = 0;
    std::memcpy(reinterpret_cast<char*>(&half) + 2, arena.data() + i, 2);
    std::memcpy(&value, &half, sizeof value);
    REQUIRE(std::isnan(value));
  }
}

TEST_CASE("highest_written is one past the last byte that differs from the pattern") {
  Arena arena(5 << 20);
  CHECK(arena.highest_written() == 0);
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  // Positions ascending: each is then the highest written so far.
  std::vector<std::uint64_t> positions = {0, 1, 4095, 4096, arena.size() - 1};
  for (int i = 0; i < 50; ++i) positions.push_back(random() % arena.size());
  std::sort(positions.begin(), positions.end());
  for (const std::uint64_t position : positions) {
    arena.data()[position] = std::byte{0};
    REQUIRE(arena.highest_written() == position + 1);
  }
}

TEST_CASE("an arena moves with its memory, and an empty one is fine") {
  Arena first(4096);
  std::byte* data = first.data();
  data[7] = std::byte{1};
  Arena second(std::move(first));
  CHECK(second.data() == data);
  CHECK(second.highest_written() == 8);
  first = std::move(second);
  CHECK(first.data() == data);
  CHECK(second.size() == 0);

  const Arena empty(0);
  CHECK(empty.size() == 0);
  CHECK(empty.span().empty());
  CHECK(empty.highest_written() == 0);
}

TEST_CASE("memory the machine does not have is refused with its purpose and a remedy") {
  const std::uint64_t available = available_memory();
  CHECK(available > 0);
  const std::string one_pebibyte =
      message_of<MachineError>([] { Arena(std::uint64_t{1} << 50, "host memory"); });
  CHECK(one_pebibyte.find("host memory") != std::string::npos);
  CHECK(one_pebibyte.find("available") != std::string::npos);
  CHECK(one_pebibyte.find("host.memory") != std::string::npos);
}
