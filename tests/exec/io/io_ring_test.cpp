// The rings below the store, io_uring and threads alike: same results from the same requests.
#include "exec/io/io_ring.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <latch>
#include <map>
#include <random>
#include <vector>

#include "base/file_descriptor.hpp"
#include "exec/io/io_threads.hpp"
#include "exec/io/io_transfer.hpp"
#include "exec/run/arena.hpp"
#include "tests/exec/child.hpp"
#include "tests/exec/io/rings.hpp"
#include "tests/exec/io_test_support.hpp"

namespace spillway::test {
namespace {

constexpr std::uint32_t block = io_alignment;
constexpr unsigned depth = 8;

// Hands over what is queued, and waits until all of `count` requests are complete. Results by tag.
std::map<std::uint32_t, std::int32_t> complete(IoRing& ring, std::size_t count) {
  std::map<std::uint32_t, std::int32_t> results;
  std::array<IoCompletion, 3> some;  // fewer than may be there
  while (results.size() < count) {
    REQUIRE(ring.submit_and_wait() >= 0);
    const std::size_t taken = ring.reap(some);
    for (std::size_t i = 0; i < taken; ++i)
      REQUIRE(results.emplace(some[i].tag, some[i].result).second);
  }
  REQUIRE(ring.reap(some) == 0);
  return results;
}

IoRequest request(IoKind kind, std::uint32_t tag, std::uint64_t offset, std::byte* memory,
                  std::uint32_t bytes, std::uint32_t file = 0) {
  return {kind, tag, file, bytes, offset, memory};
}

// A file of `blocks` blocks, its n-th filled with the letter 'A' + n.
FileDescriptor letters(const TemporaryFolder& folder, int blocks, int flags) {
  std::string text;
  for (int i = 0; i < blocks; ++i) text += std::string(block, static_cast<char>('A' + i));
  write_file(folder / "letters", text);
  FileDescriptor file(::open((folder / "letters").c_str(), flags | O_CLOEXEC));
  REQUIRE(file.valid());
  return file;
}

}  // namespace

TEST_CASE("a ring gives each request its own result, whatever the order", "[store]") {
  const IoMethod method = GENERATE(from_range(rings()));
  INFO(to_string(method));
  const TemporaryFolder folder;
  const FileDescriptor file = letters(folder, 4, O_RDWR);
  const int files[] = {file.get()};
  const auto ring = factory_of(method)(files, depth);
  const Arena memory(8 * block);
  std::memset(memory.data(), 'z', memory.size());
  // Blocks 2, 0; one that ends with the file, one behind it; a sync.
  ring->queue(request(IoKind::read, 7, 2 * block, memory.data(), block));
  ring->queue(request(IoKind::read, 3, 0, memory.data() + block, block));
  ring->queue(request(IoKind::read, 5, 3 * block, memory.data() + 2 * block, 2 * block));
  ring->queue(request(IoKind::read, 4, 4 * block, memory.data() + 4 * block, block));
  ring->queue(request(IoKind::sync, 9, 0, nullptr, 0));
  const auto results = complete(*ring, 5);
  const std::map<std::uint32_t, std::int32_t> expected = {
      {7, block}, {3, block}, {5, block}, {4, 0}, {9, 0}};
  CHECK(results == expected);
  const auto holds = [&](std::size_t at, char letter) {
    return std::all_of(memory.data() + at * block, memory.data() + (at + 1) * block,
                       [&](std::byte b) { return b == std::byte(letter); });
  };
  CHECK(holds(0, 'C'));
  CHECK(holds(1, 'A'));
  CHECK(holds(2, 'D'));
  CHECK(holds(3, 'z'));  // behind the end: not touched
  CHECK(holds(4, 'z'));
}

TEST_CASE("what fails has the error of pread, pwrite and fdatasync, and the ring goes on",
          "[store]") {
  const IoMethod method = GENERATE(from_range(rings()));
  INFO(to_string(method));
  const TemporaryFolder folder;
  const FileDescriptor only_read = letters(folder, 4, O_RDONLY | O_DIRECT);
  const FileDescriptor full(::open("/dev/full", O_RDWR | O_CLOEXEC));
  const int files[] = {only_read.get(), full.get()};
  const auto ring = factory_of(method)(files, depth);
  const Arena memory(block);
  std::memset(memory.data(), 'z', memory.size());
  const auto result_of = [](ssize_t result) {
    return static_cast<std::int32_t>(result < 0 ? -errno : result);
  };
  std::map<std::uint32_t, std::int32_t> expected;
  expected[0] = result_of(::pwrite(files[0], memory.data(), block, 0));
  expected[1] = result_of(::pread(files[0], memory.data(), 1000, 1));  // no whole block
  expected[2] = result_of(::pwrite(files[1], memory.data(), block, 0));
  expected[3] = result_of(::fdatasync(files[1]));
  CHECK(expected[0] == -EBADF);
  CHECK(expected[2] == -ENOSPC);
  ring->queue(request(IoKind::write, 0, 0, memory.data(), block));
  ring->queue(request(IoKind::read, 1, 1, memory.data(), 1000));
  ring->queue(request(IoKind::write, 2, 0, memory.data(), block, 1));
  ring->queue(request(IoKind::sync, 3, 0, nullptr, 0, 1));
  CHECK(complete(*ring, 4) == expected);
  ring->queue(request(IoKind::read, 4, block, memory.data(), block));
  CHECK(complete(*ring, 1).at(4) == block);
  CHECK(memory.data()[0] == std::byte{'B'});
}

TEST_CASE("a write that a limit of file sizes cuts is short, not failed", "[store]") {
  const IoMethod method = GENERATE(from_range(rings()));
  INFO(to_string(method));
  const TemporaryFolder folder;
  const ChildEnd end = run_in_child(
      [&](const auto& say) {
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{3 * block, 3 * block};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const FileDescriptor file(
            ::open((folder / "cut").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        const int files[] = {file.get()};
        const auto ring = factory_of(method)(files, depth);
        const Arena memory(4 * block);
        ring->queue(request(IoKind::write, 0, 0, memory.data(), 4 * block));
        IoCompletion completion;
        ring->submit_and_wait();
        while (ring->reap({&completion, 1}) == 0) ring->submit_and_wait();
        say(std::to_string(completion.result));
      },
      std::chrono::seconds(60));
  CHECK(end.finished);
  CHECK(end.said == std::to_string(3 * block));
}

TEST_CASE("a ring used for long holds no more than its depth, and loses nothing", "[store]") {
  const IoMethod method = GENERATE(from_range(rings()));
  const bool direct = GENERATE(true, false);
  INFO(to_string(method) << (direct ? ", O_DIRECT" : ""));
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const TemporaryFolder folder;
  const int blocks = 20;
  const FileDescriptor file = letters(folder, blocks, O_RDWR | (direct ? O_DIRECT : 0));
  const int files[] = {file.get()};
  const auto deep = static_cast<unsigned>(1 + random() % 40);
  const auto ring = factory_of(method)(files, deep);
  const Arena memory(deep * block);
  std::vector<char> letter_of(blocks);
  for (int i = 0; i < blocks; ++i)
    letter_of[static_cast<std::size_t>(i)] = static_cast<char>('A' + i);
  // A slot of memory for each request in flight; a block is in one request at a time.
  struct Flight {
    bool is_read = false;
    std::size_t at = 0;
  };
  std::map<std::uint32_t, Flight> flights;
  std::vector<bool> busy(blocks);
  std::vector<std::uint32_t> free_slots;
  for (std::uint32_t slot = 0; slot < deep; ++slot) free_slots.push_back(slot);
  std::vector<IoCompletion> completions(deep);
  for (int started = 0; started < 2000 || !flights.empty();) {
    while (started < 2000 && !free_slots.empty() && random() % 4 != 0) {
      const auto at = static_cast<std::size_t>(random() % blocks);
      if (busy[at]) break;
      busy[at] = true;
      const std::uint32_t slot = free_slots.back();
      free_slots.pop_back();
      const bool is_read = random() % 2 == 0;
      if (!is_read) {
        letter_of[at] = static_cast<char>('a' + random() % 26);
        std::memset(memory.data() + slot * block, letter_of[at], block);
      }
      flights[slot] = {is_read, at};
      ring->queue(request(is_read ? IoKind::read : IoKind::write, slot, at * block,
                          memory.data() + slot * block, block));
      ++started;
      if (random() % 3 == 0) ring->submit_now();
    }
    if (flights.empty()) continue;
    REQUIRE(ring->submit_and_wait() >= 0);
    const std::size_t count = ring->reap(completions);
    for (std::size_t i = 0; i < count; ++i) {
      const auto& [slot, result] = completions[i];
      REQUIRE(result == static_cast<std::int32_t>(block));
      const Flight flight = flights.at(slot);
      flights.erase(slot);
      busy[flight.at] = false;
      free_slots.push_back(slot);
      const std::byte* const place = memory.data() + slot * block;
      if (flight.is_read) REQUIRE(place[block - 1] == std::byte(letter_of[flight.at]));
    }
  }
}

TEST_CASE("more requests than a ring is deep are a mistake of ours, which ends the program") {
  const IoMethod method = GENERATE(from_range(rings()));
  INFO(to_string(method));
  const ChildEnd end = run_in_child(
      [&](const auto& say) {
        std::signal(SIGABRT, SIG_DFL);
        const int files[] = {STDIN_FILENO};
        const auto ring = factory_of(method)(files, depth);
        for (unsigned i = 0; i < depth; ++i) ring->queue(request(IoKind::sync, i, 0, nullptr, 0));
        say("full");
        ring->queue(request(IoKind::sync, depth, 0, nullptr, 0));
        say(" and fuller");
      },
      std::chrono::seconds(60));
  CHECK(end.said == "full");
  CHECK(end.signal == SIGABRT);
}

TEST_CASE("threads work at as many requests at once as there are threads") {
  // Each waits until as many are at work: with one thread less, none would ever end.
  const unsigned count = io_threads_of(depth);
  std::latch together(count);
  const auto ring = make_io_threads(
      [&](const IoRequest&) -> std::int32_t {
        together.arrive_and_wait();
        return 0;
      },
      depth);
  for (unsigned i = 0; i < count; ++i) ring->queue(request(IoKind::sync, i, 0, nullptr, 0));
  CHECK(complete(*ring, count).size() == count);
  CHECK(io_threads_of(1) == 1);
  CHECK(io_threads_of(4096) < 100);
}

TEST_CASE("threads begin what submit_now hands over, and nothing that is only queued") {
  std::latch begun(1), may_end(1);
  std::atomic<int> calls{0};
  const auto ring = make_io_threads(
      [&](const IoRequest& request) -> std::int32_t {
        ++calls;
        if (request.tag == 0) {
          begun.count_down();
          may_end.wait();
        }
        return static_cast<std::int32_t>(10 + request.tag);
      },
      depth);
  ring->queue(request(IoKind::sync, 0, 0, nullptr, 0));
  CHECK(calls == 0);
  ring->submit_now();
  begun.wait();  // nobody waits for it
  ring->queue(request(IoKind::sync, 1, 0, nullptr, 0));
  CHECK(calls == 1);
  std::array<IoCompletion, 2> completions;
  CHECK(ring->reap(completions) == 0);
  // The second overtakes the first.
  CHECK(ring->submit_and_wait() == 1);
  REQUIRE(ring->reap(completions) == 1);
  CHECK(completions[0].tag == 1);
  CHECK(completions[0].result == 11);
  may_end.count_down();
  CHECK(complete(*ring, 1).at(0) == 10);
}

TEST_CASE("a ring of threads that ends waits for what was handed over, and drops what was not") {
  std::atomic<int> ended{0};
  {
    const auto ring = make_io_threads(
        [&](const IoRequest&) -> std::int32_t {
          ::usleep(2000);
          ++ended;
          return 0;
        },
        64);
    for (std::uint32_t i = 0; i < 40; ++i) ring->queue(request(IoKind::sync, i, 0, nullptr, 0));
    ring->submit_now();
    for (std::uint32_t i = 40; i < 64; ++i) ring->queue(request(IoKind::sync, i, 0, nullptr, 0));
  }
  CHECK(ended == 40);
}

TEST_CASE("faults below the threads are retried as those below io_uring: the bytes equal a model's",
          "[store]") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  constexpr std::uint64_t blocks = 64;
  for (int round = 0; round < 10; ++round) {
    std::vector<std::byte> file(blocks * block), model(blocks * block);
    std::atomic<std::uint64_t> calls{random()}, faults{0};
    // By turns: EINTR, EAGAIN, a short transfer; most are whole.
    const auto call = [&](const IoRequest& request) -> std::int32_t {
      const std::uint64_t dice = (calls.fetch_add(1) * 0x9e3779b97f4a7c15u) >> 60;
      if (dice < 4) ++faults;
      if (dice == 0) return -EINTR;
      if (dice == 1) return -EAGAIN;
      if (request.kind == IoKind::sync) return 0;
      const std::uint32_t bytes = dice <= 3 ? request.bytes / 2 + 1 : request.bytes;
      std::byte* const place = file.data() + request.file_offset;
      request.kind == IoKind::read ? std::memcpy(request.memory, place, bytes)
                                   : std::memcpy(place, request.memory, bytes);
      return static_cast<std::int32_t>(bytes);
    };
    const auto deep = static_cast<unsigned>(1 + random() % 20);
    const auto ring = make_io_threads(call, deep);
    IoTransfer transfer(*ring, deep, Striping{block * (1 + random() % 6), 1}, {"file"});
    const Arena memory(blocks * block);
    for (int operation = 0; operation < 40; ++operation) {
      const std::uint64_t first = random() % blocks, count = random() % (blocks - first + 1);
      if (random() % 2 == 0) {
        for (std::uint64_t i = 0; i < count * block; ++i)
          memory.data()[i] = std::byte(static_cast<unsigned char>(random()));
        std::memcpy(model.data() + first * block, memory.data(), count * block);
        transfer.transfer(IoKind::write, first * block, memory.data(), count * block);
      } else {
        transfer.transfer(IoKind::read, first * block, memory.data(), count * block);
        REQUIRE(std::memcmp(memory.data(), model.data() + first * block, count * block) == 0);
      }
      transfer.sync();
    }
    CHECK(faults > 0);
  }
}

TEST_CASE("where few threads can be started, or none, the ring is slower, and says so") {
  const auto ring_of_a_user_with = [](rlim_t processes) {
    return run_in_child(
        [&](const auto& say) {
          constexpr uid_t nobody_else = 64321;  // whose processes are not counted with others
          const rlimit limit{processes, processes};
          if (::setrlimit(RLIMIT_NPROC, &limit) != 0 ||
              ::setresuid(nobody_else, nobody_else, nobody_else) != 0) {
            say("not root");
            return;
          }
          const int files[] = {STDIN_FILENO};
          const auto ring = make_io_threads(files, depth);
          std::byte byte{};
          for (std::uint32_t tag = 0; tag < 3; ++tag)
            ring->queue(request(IoKind::read, tag, 0, &byte, 1));
          if (complete(*ring, 3).size() != 3) return say("requests are missing");
          say(ring->warnings().empty() ? "no warning" : ring->warnings().front());
        },
        std::chrono::seconds(60));
  };
  const ChildEnd some = ring_of_a_user_with(4);  // itself and three threads
  if (some.said == "not root") {
    WARN("skipped: only root can become a user with a limit of threads of its own");
    return;
  }
  // The thread sanitizer has a thread of its own.
  CHECK_THAT(some.said, Catch::Matches("only [123] of 8 threads for reads and writes .*"));
  const ChildEnd none = ring_of_a_user_with(1);
  CHECK_THAT(none.said, Catch::StartsWith("only 0 of 8 threads") && Catch::Contains("ulimit -u"));
}

}  // namespace spillway::test
