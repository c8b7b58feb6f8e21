#include "exec/io/io_transfer.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "exec/run/arena.hpp"
#include "tests/exec/io/faulty_ring.hpp"
#include "tests/exec/io_test_support.hpp"

using namespace spillway;
using spillway::test::Faults;
using spillway::test::FaultyRing;
using spillway::test::LastingError;
using spillway::test::message_of;

namespace {

constexpr std::uint64_t block = io_alignment;

void fill_random(std::byte* to, std::uint64_t bytes, std::mt19937_64& random) {
  for (std::uint64_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(to + i, &word, 8);
  }
}

// Two files a and b with stripes of 4 blocks, 16 blocks each.
struct Fixture {
  explicit Fixture(Faults faults = {}) : ring(2, 16 * block, 1, faults) {}
  FaultyRing ring;
  IoTransfer transfer{ring, 4, Striping{4 * block, 2}, {"a", "b"}};
  Arena memory{32 * block};
};

}  // namespace

TEST_CASE("striping maps every block to one place, inside a file of exactly file_bytes") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    const Striping striping{block * (1 + random() % 8),
                            static_cast<std::uint32_t>(1 + random() % 5)};
    const std::uint64_t total = block * (random() % 200);
    std::vector<std::uint64_t> used(striping.files, 0);
    std::set<std::pair<std::uint32_t, std::uint64_t>> places;
    for (std::uint64_t offset = 0; offset < total; offset += block) {
      const Striping::Place place = striping.locate(offset);
      REQUIRE(place.offset + block <= striping.file_bytes(place.file, total));
      REQUIRE(places.insert({place.file, place.offset}).second);
      used[place.file] += block;
      REQUIRE(place.contiguous == striping.stripe_bytes - offset % striping.stripe_bytes);
    }
    for (std::uint32_t file = 0; file < striping.files; ++file) {
      REQUIRE(used[file] == striping.file_bytes(file, total));
    }
  }
}

TEST_CASE(
    "under short transfers, EINTR, EAGAIN, refusals and any order, the bytes equal a model's") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::size_t faults_injected = 0;
  for (int round = 0; round < 60; ++round) {
    const auto file_count = static_cast<std::uint32_t>(1 + random() % 3);
    const Striping striping{block * (1 + random() % 6), file_count};
    const std::uint64_t blocks = 64;
    const auto depth = static_cast<unsigned>(1 + random() % 8);
    FaultyRing ring(file_count, striping.file_bytes(0, blocks * block), random(),
                    Faults{0.3, 0.1, 0.1, 0.2, 0.2});
    IoTransfer transfer(ring, depth, striping, std::vector<std::string>(file_count, "file"));
    std::vector<std::byte> model(blocks * block);
    const Arena memory(blocks * block);
    for (int operation = 0; operation < 40; ++operation) {
      const std::uint64_t first = random() % blocks;
      const std::uint64_t count = random() % (blocks - first + 1);
      if (random() % 2 == 0) {
        fill_random(memory.data(), count * block, random);
        std::memcpy(model.data() + first * block, memory.data(), count * block);
        transfer.transfer(IoKind::write, first * block, memory.data(), count * block);
      } else {
        transfer.transfer(IoKind::read, first * block, memory.data(), count * block);
        REQUIRE(std::memcmp(memory.data(), model.data() + first * block, count * block) == 0);
      }
      REQUIRE(ring.outstanding() == 0);
    }
    REQUIRE(ring.deepest <= depth);
    faults_injected += ring.faults_injected;
  }
  CHECK(faults_injected > 1000);  // the faults did happen
}

TEST_CASE("a queue of depth d keeps d requests in flight") {
  Fixture fixture;  // 8 stripes, depth 4
  fixture.transfer.transfer(IoKind::write, 0, fixture.memory.data(), 32 * block);
  CHECK(fixture.ring.deepest == 4);
}

TEST_CASE("an I/O error names operation, file, offset and remedy, and nothing stays in flight") {
  Fixture fixture(Faults{0.3, 0.1, 0.1, 0.1, 0.1});
  // Store block 12 is the first of stripe 3: file b, its second stripe, file offset 4 blocks.
  fixture.ring.error = LastingError{IoKind::write, 1, 4 * block, EIO};
  const std::string message = message_of<MachineError>(
      [&] { fixture.transfer.transfer(IoKind::write, 0, fixture.memory.data(), 32 * block); });
  CHECK(message.find("write of 16384 bytes at offset 16384 of b failed") != std::string::npos);
  CHECK(message.find("Input/output error") != std::string::npos);
  CHECK(message.find("dmesg") != std::string::npos);
  CHECK(fixture.ring.outstanding() == 0);

  // The other direction works, and so does writing once the error has gone.
  fixture.transfer.transfer(IoKind::read, 0, fixture.memory.data(), 32 * block);
  fixture.ring.error.reset();
  std::memset(fixture.memory.data(), 7, 32 * block);
  fixture.transfer.transfer(IoKind::write, 0, fixture.memory.data(), 32 * block);
  for (const auto& file : fixture.ring.files) {
    CHECK(std::all_of(file.begin(), file.end(), [](std::byte b) { return b == std::byte{7}; }));
  }
}

TEST_CASE("after an error no further request starts") {
  // One request at a time, the first one fails: nothing is written to either file.
  FaultyRing ring(2, 16 * block, 1, Faults{});
  IoTransfer transfer(ring, 1, Striping{4 * block, 2}, {"a", "b"});
  ring.error = LastingError{IoKind::write, 0, 0, EIO};
  const Arena memory(32 * block);  // its pattern is not zero
  CHECK_THROWS_AS(transfer.transfer(IoKind::write, 0, memory.data(), 32 * block), MachineError);
  for (const auto& file : ring.files) CHECK(file == std::vector<std::byte>(16 * block));
}

TEST_CASE("a disk that fills up during a write says so") {
  Fixture fixture;
  fixture.ring.error = LastingError{IoKind::write, 0, 0, ENOSPC};
  const std::string message = message_of<MachineError>(
      [&] { fixture.transfer.transfer(IoKind::write, 0, fixture.memory.data(), block); });
  CHECK(message.find("No space left on device") != std::string::npos);
  CHECK(message.find("free space") != std::string::npos);
}

TEST_CASE("EAGAIN for ever ends in an error, after pauses") {
  Fixture fixture;
  fixture.ring.error = LastingError{IoKind::read, 0, 0, EAGAIN};
  const std::string message = message_of<MachineError>(
      [&] { fixture.transfer.transfer(IoKind::read, 0, fixture.memory.data(), 32 * block); });
  CHECK(message.find("read of 16384 bytes at offset 0 of a failed") != std::string::npos);
  CHECK(message.find("short of resources") != std::string::npos);
  CHECK(fixture.ring.pauses > 100);
  CHECK(fixture.ring.outstanding() == 0);
}

TEST_CASE("a file cut short during a run is an error, not an endless loop") {
  Fixture fixture;
  fixture.ring.files[1].resize(block);
  const std::string message = message_of<MachineError>(
      [&] { fixture.transfer.transfer(IoKind::read, 0, fixture.memory.data(), 32 * block); });
  CHECK(message.find("b ends before offset") != std::string::npos);
  CHECK(message.find("cut short") != std::string::npos);
}

TEST_CASE("a ring that refuses every submission is given up, once and for all") {
  struct Refusing final : IoRing {
    void queue(const IoRequest&) override {}
    int submit_and_wait() override { return -EBUSY; }
    std::size_t reap(std::span<IoCompletion>) override { return 0; }
    void pause(unsigned) override {}
    void register_memory(std::span<std::byte>) override {}
    const std::vector<std::string>& warnings() const override { return none; }
    std::vector<std::string> none;
  } ring;
  IoTransfer transfer(ring, 4, Striping{block, 1}, {"a"});
  const Arena memory(block);
  const auto attempt = [&] { transfer.transfer(IoKind::read, 0, memory.data(), block); };
  CHECK(message_of<MachineError>(attempt).find("does not accept requests for a") !=
        std::string::npos);
  CHECK(message_of<MachineError>(attempt).find("cannot be used again") != std::string::npos);
}

TEST_CASE("sync syncs every file, and its error names the file") {
  Fixture fixture(Faults{0, 0.3, 0.3, 0.3, 0.3});
  fixture.transfer.sync();
  std::sort(fixture.ring.synced.begin(), fixture.ring.synced.end());
  CHECK(fixture.ring.synced == std::vector<std::size_t>{0, 1});
  fixture.ring.error = LastingError{IoKind::sync, 1, 0, EIO};
  CHECK(message_of<MachineError>([&] { fixture.transfer.sync(); }).find("sync of b failed") !=
        std::string::npos);
  CHECK(fixture.ring.outstanding() == 0);
}

TEST_CASE("pieces of files that begin and end anywhere are gathered, whatever the kernel does") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    Faults faults;
    faults.short_transfer = faults.interrupted = faults.again = round % 2 == 0 ? 0 : 0.2;
    FaultyRing ring(2, 600 * block, random(), faults);
    IoTransfer transfer(ring, 4, Striping{4 * block, 2}, {"a", "b"});
    Arena whole(600 * block), memory(4 * IoTransfer::piece_memory);
    for (std::uint32_t file = 0; file < 2; ++file) {
      fill_random(whole.data(), whole.size(), random);
      transfer.transfer_in_file(IoKind::write, file, 0, whole.data(), whole.size());
    }
    std::vector<std::byte> wanted, found(1 << 22, std::byte{7});
    std::vector<IoTransfer::Piece> pieces;
    std::uint64_t at = 0;
    for (int i = 0; i < 12; ++i) {
      const std::uint64_t offset = random() % (590 * block);
      const std::uint64_t bytes =
          std::min<std::uint64_t>(1 + random() % (i % 3 == 0 ? 400 * block : 3000),
                                  std::min(600 * block - offset, found.size() - at));
      if (bytes == 0) continue;
      pieces.push_back({1, offset, found.data() + at, bytes});
      wanted.insert(wanted.end(), whole.data() + offset, whole.data() + offset + bytes);
      at += bytes;
    }
    transfer.gather(pieces, memory.span());
    REQUIRE(std::equal(wanted.begin(), wanted.end(), found.begin()));
    REQUIRE((at == found.size() || found[at] == std::byte{7}));
  }
}
