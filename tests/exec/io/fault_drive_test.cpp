// The failing drive itself: what it loses, what it must not lose, and that a seed says which.
#include "tests/exec/io/fault_drive.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "exec/run/arena.hpp"
#include "exec/store/ssd_store.hpp"
#include "tests/exec/child.hpp"
#include "tests/exec/io_test_support.hpp"

namespace spillway::test {
namespace {

constexpr std::uint64_t block = io_alignment;
constexpr std::uint64_t blocks = 32;

// A store of 32 blocks in two directories, in stripes of two blocks, on a drive of its own.
struct Bench {
  explicit Bench(std::uint64_t seed, FaultPlan plan = {}, bool over_threads = false)
      : drive(seed, plan) {
    SsdStoreOptions options;
    options.stripe_bytes = 2 * block;
    options.queue_depth = 8;
    options.keep = true;
    options.make_ring = drive.rings(over_threads);
    std::filesystem::create_directories(folder / "a");
    std::filesystem::create_directories(folder / "b");
    store.emplace(std::vector{folder / "a", folder / "b"}, blocks * block, options);
  }
  // All blocks as the files hold them, which are all that is left when the power is gone.
  std::vector<std::byte> in_files() const {
    const Striping striping{2 * block, 2, store_header_bytes};
    const std::array files{read_file(store->files()[0]), read_file(store->files()[1])};
    std::vector<std::byte> all(blocks * block);
    for (std::uint64_t offset = 0; offset < all.size(); offset += block) {
      const Striping::Place place = striping.locate(offset);
      std::memcpy(all.data() + offset, files[place.file].data() + place.offset, block);
    }
    return all;
  }

  TemporaryFolder folder{std::filesystem::temp_directory_path()};
  FaultDrive drive;
  std::optional<SsdStore> store;
};

void fill(const Arena& memory, std::uint64_t first, std::uint64_t count, int value) {
  std::memset(memory.data() + first * block, value, count * block);
}

FaultPlan volatile_plan() {
  FaultPlan plan;
  plan.volatile_cache = true;
  return plan;
}

// All blocks 1, synced; then 20 writes of 1 to 8 blocks, of 2, 3, 4, ..., never synced; then the
// power goes. Returns what the files hold, and in `written` what was written last where.
std::vector<std::byte> after_power_loss(std::uint64_t seed,
                                        std::vector<std::byte>* written = nullptr) {
  Bench bench(seed, volatile_plan());
  SsdStore::Channel channel(*bench.store);
  const Arena memory(blocks * block);
  fill(memory, 0, blocks, 1);
  channel.write(0, memory.data(), blocks * block);
  channel.sync();
  std::mt19937_64 random(seed);
  for (int value = 2; value < 22; ++value) {
    const std::uint64_t first = random() % blocks,
                        count = 1 + random() % std::min<std::uint64_t>(8, blocks - first);
    fill(memory, first, count, value);
    channel.write(first * block, memory.data() + first * block, count * block);
  }
  if (written) written->assign(memory.data(), memory.data() + blocks * block);
  bench.drive.lose_power();
  return bench.in_files();
}

}  // namespace

TEST_CASE("reads see what is in the drive's cache, the file has it after a sync and not before",
          "[store]") {
  Bench bench(1, volatile_plan(), GENERATE(false, true));
  SsdStore::Channel channel(*bench.store);
  const Arena memory(blocks * block), back(blocks * block);
  fill(memory, 0, blocks, 7);
  channel.write(0, memory.data(), blocks * block);
  CHECK(bench.drive.volatile_bytes() == blocks * block);
  CHECK(bench.in_files() == std::vector<std::byte>(blocks * block));
  fill(memory, 3, 1, 8);
  channel.write(3 * block, memory.data() + 3 * block, block);
  SsdStore::Channel other(*bench.store);  // another ring of the same drive
  other.read(0, back.data(), blocks * block);
  CHECK(std::memcmp(back.data(), memory.data(), blocks * block) == 0);
  other.sync();
  CHECK(bench.drive.volatile_bytes() == 0);
  const std::vector<std::byte> files = bench.in_files();
  CHECK(std::memcmp(files.data(), memory.data(), blocks * block) == 0);
}

TEST_CASE("after a power cut each sector holds what was synced, or something written since",
          "[store]") {
  const std::uint64_t first = std::random_device{}();
  INFO("first seed " << first);
  std::size_t all_lost = 0, all_there = 0, torn = 0, older_survived = 0;
  for (std::uint64_t seed = first; seed < first + 150; ++seed) {
    INFO("seed " << seed);
    std::vector<std::byte> last;
    const std::vector<std::byte> found = after_power_loss(seed, &last);
    // Replays the writes: which values each block may hold.
    std::vector<std::vector<std::byte>> possible(blocks, {std::byte{1}});
    std::mt19937_64 random(seed);
    for (int value = 2; value < 22; ++value) {
      const std::uint64_t from = random() % blocks,
                          count = 1 + random() % std::min<std::uint64_t>(8, blocks - from);
      for (std::uint64_t b = from; b < from + count; ++b) possible[b].push_back(std::byte(value));
    }
    for (std::uint64_t at = 0; at < found.size(); at += 512) {
      const auto sector_begin = found.begin() + static_cast<std::ptrdiff_t>(at);
      REQUIRE(std::all_of(sector_begin, sector_begin + 512,
                          [&](std::byte b) { return b == *sector_begin; }));
      const auto& values = possible[at / block];
      REQUIRE(std::find(values.begin(), values.end(), *sector_begin) != values.end());
      torn += at % block != 0 && found[at] != found[at - 512];
      older_survived += found[at] != std::byte{1} && found[at] != last[at];
    }
    all_lost += found == std::vector<std::byte>(found.size(), std::byte{1});
    all_there += found == last;
  }
  // Everything that may happen does.
  CHECK(all_lost > 0);
  CHECK(all_there > 0);
  CHECK(torn > 100);
  CHECK(older_survived > 100);
}

TEST_CASE("a seed of the failing drive says what is lost", "[store]") {
  CHECK(after_power_loss(11) == after_power_loss(11));
  std::vector<std::vector<std::byte>> outcomes;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Bench bench(seed, volatile_plan());
    SsdStore::Channel channel(*bench.store);
    const Arena memory(blocks * block);
    channel.write(0, memory.data(), blocks * block);  // the arena's own pattern
    bench.drive.lose_power();
    outcomes.push_back(bench.in_files());
  }
  CHECK(std::adjacent_find(outcomes.begin(), outcomes.end(), std::not_equal_to<>()) !=
        outcomes.end());
}

TEST_CASE("without power nothing works, and a cut in a child leaves what was synced", "[store]") {
  FaultPlan plan = volatile_plan();
  // Requests 0 .. 15 write the 16 stripes, 16 and 17 sync both files.
  plan.once = FaultPlan::Once{Fault::power_cut, 20};
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  Bench bench(seed, plan, GENERATE(false, true));
  const ChildEnd end = run_in_child(
      [&](const auto& say) {
        SsdStore::Channel channel(*bench.store);
        const Arena memory(blocks * block);
        fill(memory, 0, blocks, 5);
        channel.write(0, memory.data(), blocks * block);
        channel.sync();
        say("synced");
        fill(memory, 0, blocks, 6);
        channel.write(0, memory.data(), blocks * block);
        say("written");
      },
      std::chrono::seconds(60));
  CHECK(end.signal == SIGKILL);
  CHECK_FALSE(end.timed_out);
  CHECK(end.said == "synced");
  const std::vector<std::byte> found = bench.in_files();
  CHECK(std::all_of(found.begin(), found.end(),
                    [](std::byte b) { return b == std::byte{5} || b == std::byte{6}; }));
  CHECK(std::count(found.begin(), found.end(), std::byte{5}) > 0);

  bench.drive.lose_power();
  SsdStore::Channel channel(*bench.store);
  const Arena memory(block);
  CHECK_THROWS_AS(channel.read(0, memory.data(), block), MachineError);
}

TEST_CASE("a child that hangs is ended, one that fails says how", "[store]") {
  const ChildEnd hangs = run_in_child(
      [](const auto& say) {
        say("waiting");
        while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
      },
      std::chrono::seconds(1));
  CHECK(hangs.timed_out);
  CHECK(hangs.said == "waiting");
  const ChildEnd fails = run_in_child(
      [](const auto&) { throw MachineError("it broke", "mend it"); }, std::chrono::seconds(60));
  CHECK_FALSE(fails.finished);
  CHECK(fails.uncaught == "it broke | mend it");
  CHECK(run_in_child([](const auto&) {}, std::chrono::seconds(60)).finished);
}

TEST_CASE("one fault strikes once, at the request it is put at", "[store]") {
  const bool over_threads = GENERATE(false, true);
  const Arena memory(blocks * block), back(blocks * block);
  fill(memory, 0, blocks, 9);
  for (const Fault fault :
       {Fault::io_error, Fault::no_space, Fault::short_transfer, Fault::interrupted, Fault::again,
        Fault::flipped_read, Fault::flipped_write}) {
    INFO(to_string(fault) << (over_threads ? ", over threads" : ""));
    FaultPlan plan;
    plan.once = FaultPlan::Once{fault, fault == Fault::flipped_read ? 17u : 5u};
    Bench bench(1, plan, over_threads);
    SsdStore::Channel channel(*bench.store);
    const auto write = [&] { channel.write(0, memory.data(), blocks * block); };
    if (fault == Fault::io_error || fault == Fault::no_space) {
      const std::string message = message_of<MachineError>(write);
      CHECK(message.find("write of 8192 bytes at offset") != std::string::npos);
      CHECK(message.find("spillway-store-") != std::string::npos);
    }
    if (fault != Fault::io_error && fault != Fault::no_space) write();
    if (fault == Fault::io_error || fault == Fault::no_space) write();  // works again
    std::ptrdiff_t wrong[2];
    for (std::ptrdiff_t& count : wrong) {
      channel.read(0, back.data(), blocks * block);
      count = std::count_if(back.data(), back.data() + back.size(),
                            [](std::byte b) { return b != std::byte{9}; });
    }
    CHECK(bench.drive.has_struck());
    CHECK(wrong[0] == (fault == Fault::flipped_read || fault == Fault::flipped_write ? 1 : 0));
    CHECK(wrong[1] == (fault == Fault::flipped_write ? 1 : 0));
  }
}

TEST_CASE("several lanes on one failing drive: each reads what it wrote", "[store]") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  FaultPlan plan = volatile_plan();
  plan.chances = {0.2, 0.1, 0.1, 0.2, 0.2};
  plan.cache_bytes = 8 * block;  // most leaves it without a sync
  plan.most_latency = std::chrono::microseconds(50);
  Bench bench(seed, plan, GENERATE(false, true));
  constexpr std::uint64_t lanes = 4, share = blocks / lanes;
  std::array<std::size_t, lanes> mismatches{};
  std::vector<std::thread> threads;
  for (std::uint64_t lane = 0; lane < lanes; ++lane) {
    threads.emplace_back([&, lane] {
      SsdStore::Channel channel(*bench.store);
      const Arena memory(share * block), back(share * block);
      std::mt19937_64 random(seed + lane);
      for (int round = 0; round < 30; ++round) {
        fill(memory, random() % share, 1, static_cast<int>(random() % 256));
        channel.write(lane * share * block, memory.data(), share * block);
        channel.read(lane * share * block, back.data(), share * block);
        mismatches[lane] += std::memcmp(memory.data(), back.data(), share * block) != 0;
        if (random() % 5 == 0) channel.sync();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(mismatches == std::array<std::size_t, lanes>{});
  CHECK(bench.drive.faults() > 100);
  CHECK(bench.drive.volatile_bytes() <= plan.cache_bytes);
}

}  // namespace spillway::test
