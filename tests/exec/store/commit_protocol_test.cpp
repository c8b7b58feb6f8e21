// The parts of the commit protocol on their own: commit points, the gate, the record, the table of
// checksums.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "exec/store/commit_record.hpp"
#include "exec/store/store_header.hpp"
#include "exec/store/version_gate.hpp"
#include "tests/exec/io_test_support.hpp"

namespace spillway::test {
namespace {

// -- commit points

TEST_CASE("the committed copy is never the one that is written, for all intervals and bases") {
  for (std::int64_t interval = 1; interval <= 6; ++interval) {
    for (std::int64_t base = 0; base <= 9; ++base) {
      for (const auto& [base_epoch, also] : std::vector<std::pair<std::int64_t, std::int64_t>>{
               {0, 0}, {1, 0}, {2, 3}, {7, 4}, {0, 5}, {3, 6}}) {
        const CommitPoints points{interval, base, base_epoch, base + 20, also};
        INFO("interval " << interval << " and every " << also << ", from version " << base
                         << " of epoch " << base_epoch);
        std::int64_t committed = base;
        CHECK(points.epoch_of(base) == base_epoch);
        while (committed < points.last_version) {
          const std::int64_t next = points.next(committed);
          REQUIRE(next > committed);
          REQUIRE((next % interval == 0 || next == points.last_version ||
                   (also > 0 && next % also == 0)));
          // None is left out.
          for (std::int64_t between = committed + 1; between < next; ++between)
            REQUIRE((between % interval != 0 && (also == 0 || between % also != 0)));
          for (std::int64_t version = committed + 1; version <= next; ++version) {
            // All versions up to the next commit overwrite one copy, which is not the committed
            // one.
            REQUIRE(points.epoch_of(version) == points.epoch_of(committed) + 1);
            REQUIRE(points.copy_of(version) != points.copy_of(committed));
            REQUIRE(points.copy_of(version) == points.copy_of(next));
          }
          committed = next;
        }
        CHECK(committed == points.last_version);
      }
    }
  }
}

TEST_CASE("a training that is stopped and resumed with any interval never overwrites what counts") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 500; ++round) {
    std::int64_t version = 0, epoch = 0;  // of the newest record
    while (version < 40) {
      const auto interval = static_cast<std::int64_t>(1 + random() % 6);
      const CommitPoints points{interval, version, epoch, 40};
      std::int64_t committed = version;
      for (auto commits = random() % 4; commits > 0 && committed < 40; --commits)
        committed = points.next(committed);
      // A stop in between commits whatever version is whole: one of the epoch that is written.
      if (committed < 40 && random() % 2 == 0) {
        const std::int64_t next = points.next(committed);
        const auto stop =
            committed +
            static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(next - committed) + 1);
        REQUIRE(points.epoch_of(stop) == points.epoch_of(committed) + 1);
        committed = stop;
      }
      REQUIRE(points.epoch_of(committed) >= epoch);
      epoch = points.epoch_of(committed);
      version = committed;
    }
  }
}

// -- the gate

using namespace std::chrono_literals;

// Runs `body` on a thread; whether it waits shows in ready().
struct Waiting {
  template <typename Body>
  explicit Waiting(Body body) : result(std::async(std::launch::async, std::move(body))) {}
  bool ready() { return result.wait_for(5s) == std::future_status::ready; }
  // Nothing that happens would make it ready: a pause shows only what is wrong.
  bool waits() { return result.wait_for(20ms) == std::future_status::timeout; }
  std::future<bool> result;
};

TEST_CASE("the first version after a commit point waits for the commit") {
  VersionGate gate({1, 0, 0, 10}, 2, true);
  CHECK(gate.enter(1));
  CHECK(gate.enter(1));
  gate.leave(1);
  CHECK(gate.whole_version() == 0);
  Waiting next([&] { return gate.enter(2); });
  gate.leave(1);
  CHECK(gate.whole_version() == 1);
  CHECK_FALSE(gate.may_commit(1));
  gate.reported(1);
  CHECK(gate.may_commit(1));
  CHECK(gate.next_commit(0) == 1);
  CHECK(next.waits());
  gate.committed(1);
  REQUIRE(next.ready());
  CHECK(next.result.get());
}

TEST_CASE("a version is whole once all its parts and those before it are, whoever tells first") {
  VersionGate gate({4, 0, 0, 10}, 2, false);
  for (const std::int64_t version : {1, 2, 2, 3, 3}) gate.leave(version);
  CHECK(gate.whole_version() == 0);
  gate.leave(1);
  CHECK(gate.whole_version() == 3);
  gate.leave(4, 2);
  CHECK(gate.whole_version() == 4);
}

TEST_CASE("no version is lost between threads that complete versions at the same time") {
  constexpr std::int64_t versions = 5000;
  constexpr std::uint32_t parts = 3;
  VersionGate gate({versions, 0, 0, versions}, parts, false);
  std::vector<std::thread> lanes;
  for (std::uint32_t part = 0; part < parts; ++part) {
    lanes.emplace_back([&] {
      for (std::int64_t version = 1; version <= versions; ++version) {
        while (version > gate.whole_version() + 3) std::this_thread::yield();
        gate.leave(version);
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
  CHECK(gate.whole_version() == versions);
}

TEST_CASE("within one epoch nothing waits, and without durability nothing ever does") {
  VersionGate gate({4, 0, 0, 10}, 1, true);
  for (std::int64_t version = 1; version <= 4; ++version) {
    REQUIRE(gate.enter(version));
    gate.leave(version);
  }
  Waiting next([&] { return gate.enter(5); });
  CHECK(next.waits());
  gate.committed(4);
  CHECK(next.ready());
  VersionGate off({1, 0, 0, 10}, 1, false);
  for (std::int64_t version = 1; version <= 10; ++version) {
    REQUIRE(off.enter(version));
    off.leave(version);
  }
}

TEST_CASE("a stop agrees on the latest version begun, and lets no later one begin") {
  VersionGate gate({3, 5, 0, 100}, 2, true);
  CHECK(gate.stop_version() == -1);
  REQUIRE(gate.enter(6));
  CHECK(gate.begin(7));  // its step is reported already
  CHECK(gate.request_stop(6) == 7);
  CHECK(gate.request_stop(50) == 7);
  CHECK(gate.stop_version() == 7);
  CHECK(gate.begin(7));
  CHECK_FALSE(gate.begin(8));
  CHECK(gate.next_commit(5) == 6);
  CHECK(gate.next_commit(6) == 7);
  CHECK(gate.next_commit(7) == 7);
  Waiting late([&] { return gate.enter(8); });
  CHECK(late.waits());
  gate.halt();
  REQUIRE(late.ready());
  CHECK_FALSE(late.result.get());
  CHECK_FALSE(gate.enter(7));
}

TEST_CASE("a stop asked for at the very start or the very end names a version there is") {
  VersionGate fresh({1, 0, 0, 3}, 1, true);
  CHECK(fresh.request_stop(1) == 1);
  VersionGate late({1, 2, 0, 3}, 1, true);
  CHECK(late.request_stop(9) == 3);
}

// What the two kinds of copies hold is checked by a committer of the test: whatever lanes do, what
// it finds is of one version.
TEST_CASE("lanes and a committer on threads of their own keep every commit whole") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 30; ++round) {
    const auto interval = static_cast<std::int64_t>(1 + random() % 3);
    const std::int64_t last = 60;
    const CommitPoints points{interval, 0, 0, last};
    VersionGate gate(points, 2, true);
    std::int64_t memory = 0;               // version of the part in memory
    std::array<std::int64_t, 2> on_ssd{};  // of the part on the ssd, by copy
    std::int64_t stop_after = round % 2 == 0 ? 1000 : static_cast<std::int64_t>(1 + random() % 50);
    std::atomic<std::int64_t> memory_done{0}, ssd_done{0};
    // A step begins when both parts of the step before are there, as forward would see to.
    const auto lane = [&](bool in_memory) {
      for (std::int64_t version = 1; version <= last; ++version) {
        while (!gate.halted() && std::min(memory_done, ssd_done) < version - 1)
          std::this_thread::yield();
        if (!gate.enter(version)) return;
        if (in_memory) {
          memory = version;
          memory_done = version;
        } else {
          on_ssd[static_cast<std::size_t>(points.copy_of(version))] = version;
          ssd_done = version;
        }
        gate.leave(version);
      }
    };
    bool whole = true;
    std::int64_t committed = 0;
    std::thread one(lane, true), other(lane, false), reporter([&] {
      for (std::int64_t version = 1; version <= last; ++version) {
        while (gate.whole_version() < version && !gate.halted()) std::this_thread::yield();
        if (gate.halted() || !gate.begin(version)) return;
        gate.reported(version);
        if (version == stop_after) gate.request_stop(version + 1);
      }
    });
    while (true) {
      const std::uint32_t seen = gate.changes().load();
      const std::int64_t next = gate.next_commit(committed);
      if (next == committed) break;
      if (!gate.may_commit(next)) {
        gate.changes().wait(seen);
        continue;
      }
      whole =
          whole && memory == next && on_ssd[static_cast<std::size_t>(points.copy_of(next))] == next;
      committed = next;
      gate.committed(next);
    }
    gate.halt();
    one.join();
    other.join();
    reporter.join();
    REQUIRE(whole);
    REQUIRE(committed == (stop_after < last ? gate.stop_version() : last));
  }
}

// -- the record

struct Sample {
  StoreIdentity identity{"{\"numbers\":{}}", {"/a", "/b"}, 8192, 6 * 4096, {}, {}};
  ChunkTable chunks{{4096, 8192, 12288, 20480}, 8192, 6 * 4096};
  Sample() {
    // 1024 elements of 12 bytes are three blocks.
    StatePart part;
    part.elements = 1024;
    part.address = {0, 3 * 4096};
    identity.parts = {part};
    for (std::size_t i = 0; i < chunks.count(); ++i) chunks.set(i, 1000 + i);
  }
  std::vector<std::byte> slot(std::int64_t version, std::int64_t epoch) const {
    std::vector<std::byte> bytes(record_slot_bytes(identity, chunks));
    encode_record(identity, chunks, version, epoch, bytes);
    return bytes;
  }
};

TEST_CASE("a record says what was put into it: of the committed copy only") {
  const Sample sample;
  for (const std::int64_t epoch : {4, 5}) {
    const auto record = decode_record(sample.slot(9, epoch));
    REQUIRE(record.has_value());
    CHECK(record->version == 9);
    CHECK(record->epoch == epoch);
    CHECK(record->identity.training == sample.identity.training);
    CHECK(record->identity.directories == sample.identity.directories);
    CHECK(record->identity.stripe_bytes == 8192);
    CHECK(record->identity.store_bytes == 6 * 4096);
    CHECK(record->identity.parts == sample.identity.parts);
    REQUIRE(record->chunks.size() == 1);
    // The chunks from the copy's begin to its end, with their sums.
    const std::uint64_t begin = epoch % 2 == 0 ? 0 : 12288;
    REQUIRE(!record->chunks[0].empty());
    CHECK(record->chunks[0].back().end == begin + 12288);
    for (const CommitRecord::Chunk& chunk : record->chunks[0]) {
      CHECK((chunk.end > begin && chunk.end <= begin + 12288));
      bool known = false;
      for (std::size_t i = 0; i < sample.chunks.count(); ++i)
        known |= sample.chunks.end(i) == chunk.end && sample.chunks.sum(i) == chunk.sum;
      CHECK(known);
    }
  }
  // Of version 0 there is no state.
  CHECK(decode_record(sample.slot(0, 0))->chunks[0].empty());
}

TEST_CASE("every flipped bit and every truncation of a record is found") {
  const Sample sample;
  std::vector<std::byte> slot = sample.slot(9, 5);
  std::uint64_t body = 0;
  std::memcpy(&body, slot.data() + 24, sizeof(body));
  const std::size_t used = 32 + body;
  REQUIRE(used < slot.size());
  for (std::size_t bit = 0; bit < used * 8; ++bit) {
    slot[bit / 8] ^= std::byte(1u << (bit % 8));
    INFO("bit " << bit);
    REQUIRE_FALSE(decode_record(slot).has_value());
    slot[bit / 8] ^= std::byte(1u << (bit % 8));
  }
  for (std::size_t bytes = 0; bytes < used; ++bytes) {
    INFO("cut after " << bytes << " bytes");
    REQUIRE_FALSE(decode_record(std::span(slot).first(bytes)).has_value());
    // Torn: the rest is what was there before.
    std::vector<std::byte> torn = sample.slot(7, 3);
    std::copy_n(slot.begin(), bytes, torn.begin());
    if (const auto record = decode_record(torn)) {
      REQUIRE((std::equal(torn.begin(), torn.begin() + static_cast<std::ptrdiff_t>(used),
                          slot.begin()) ||
               record->version == 7));
    }
  }
  CHECK(decode_record(slot).has_value());
}

TEST_CASE("of two whole records the newest counts, of a torn one the other, of none nothing") {
  const Sample sample;
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "record";
  const auto text = [](const std::vector<std::byte>& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const std::string four = text(sample.slot(8, 4)), five = text(sample.slot(9, 5));
  const std::string nothing(four.size(), '\0'), header(store_header_bytes, '\0');
  write_file(file, header + four + five);
  CHECK(read_newest_record(file)->version == 9);
  write_file(file, header + five + four);
  CHECK(read_newest_record(file)->version == 9);
  std::string torn = five;
  torn[100] = static_cast<char>(torn[100] ^ 1);
  write_file(file, header + four + torn);
  CHECK(read_newest_record(file)->version == 8);
  write_file(file, header + nothing + five);
  CHECK(read_newest_record(file)->version == 9);
  write_file(file, header + nothing + torn);
  CHECK_FALSE(read_newest_record(file).has_value());
  write_file(file, "");
  CHECK_FALSE(read_newest_record(file).has_value());
  CHECK_THAT(message_of<InputError>([&] { read_newest_record(folder / "absent"); }),
             Catch::Contains("absent") && Catch::Contains("durability"));
}

TEST_CASE("a record of a later format is said to be one") {
  const Sample sample;
  std::vector<std::byte> slot = sample.slot(9, 5);
  slot[32] = std::byte{5};  // the format, which begins the body; and the checksum that fits
  std::uint64_t body = 0;
  std::memcpy(&body, slot.data() + 24, sizeof(body));
  const std::uint64_t sum = ChunkTable::checksum(std::span(slot).subspan(24, 8 + body));
  std::memcpy(slot.data() + 16, &sum, sizeof(sum));
  CHECK_THAT(
      message_of<InputError>([&] { decode_record(slot); }),
      Catch::Contains("format 5; this version reads 2 to 4") && Catch::Contains("version of"));
}

// -- the table

TEST_CASE("chunks are cut at every boundary and at the grid, and cover all") {
  const ChunkTable table({12288, 4096, 12288}, 8192, 20480);
  REQUIRE(table.count() == 5);
  const std::uint64_t expected[] = {0, 4096, 8192, 12288, 16384, 20480};
  for (std::size_t i = 0; i < table.count(); ++i) {
    CHECK(table.begin(i) == expected[i]);
    CHECK(table.end(i) == expected[i + 1]);
    CHECK(table.find(expected[i]) == i);
    CHECK(table.sum(i) == 0);
  }
  CHECK(table.find(20480) == table.count());
  CHECK(table.find(1) == table.count());
  const std::array<std::byte, 3> three{};
  CHECK(ChunkTable::checksum(three) != 0);
  // Runs of whole chunks, as long as may be.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;
  for_chunk_runs(table, 4096, 16384, 8192,
                 [&](std::uint64_t at, std::uint64_t bytes) { runs.emplace_back(at, bytes); });
  CHECK(runs == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{4096, 8192}, {12288, 8192}});
}

}  // namespace
}  // namespace spillway::test
