#include "exec/store/ssd_store.hpp"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

#include "exec/run/arena.hpp"
#include "exec/run/available_memory.hpp"
#include "tests/exec/io/rings.hpp"
#include "tests/exec/io_test_support.hpp"
#include "tests/refused_calls.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr std::uint64_t block = io_alignment;
constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

using Paths = std::vector<std::filesystem::path>;

// Each test that transfers anything does it over every ring.
SsdStore::Options with_stripe(std::uint64_t stripe_bytes, IoMethod ring) {
  SsdStore::Options options;
  options.stripe_bytes = stripe_bytes;
  options.make_ring = factory_of(ring);
  return options;
}
SsdStore::Options over(IoMethod ring) { return with_stripe(mebibyte, ring); }

void fill_random(std::byte* to, std::uint64_t bytes, std::mt19937_64& random) {
  for (std::uint64_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(to + i, &word, 8);
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Of a file of a store, after its header.
std::string contents(const std::filesystem::path& file) {
  return read_file(file).substr(store_header_bytes);
}

// A soft resource limit, lowered for as long as this lives.
class LoweredLimit {
 public:
  LoweredLimit(int resource, rlim_t value) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    rlimit lowered = before_;
    lowered.rlim_cur = value;
    ::setrlimit(resource_, &lowered);
  }
  ~LoweredLimit() { ::setrlimit(resource_, &before_); }
  LoweredLimit(const LoweredLimit&) = delete;
  LoweredLimit& operator=(const LoweredLimit&) = delete;

 private:
  int resource_;
  rlimit before_{};
};

}  // namespace

TEST_CASE("what is written to the store is read back: random runs over 1 to 3 directories",
          "[store]") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const IoMethod ring = GENERATE(from_range(rings()));
  INFO(to_string(ring));
  const bool direct = GENERATE(true, false);
  const bool registered = GENERATE(true, false);
  const std::size_t directories = GENERATE(1u, 2u, 3u);
  const TemporaryFolder folders[3];
  Paths paths;
  for (std::size_t i = 0; i < directories; ++i) paths.push_back(folders[i].path());

  SsdStore::Options options = with_stripe(block * (1 + random() % 16), ring);
  options.direct = direct;
  options.queue_depth = static_cast<unsigned>(1 + random() % 32);
  const std::uint64_t blocks = 300;
  const SsdStore store(paths, blocks * block - 100, options);  // rounded up to 300 blocks
  REQUIRE(store.size() == blocks * block);
  const Arena memory(blocks * block);
  SsdStore::Channel channel(store);
  if (registered) channel.register_memory(memory.span());
  CHECK(channel.warnings().empty());

  std::vector<std::byte> model(blocks * block);  // a fresh store is zero
  std::uint64_t read = 0, written = 0;
  for (int operation = 0; operation < 60; ++operation) {
    const std::uint64_t first = random() % blocks;
    const std::uint64_t bytes = random() % (blocks - first + 1) * block;
    std::byte* place = memory.data() + random() % (blocks - bytes / block + 1) * block;
    if (random() % 2 == 0) {
      fill_random(place, bytes, random);
      std::memcpy(model.data() + first * block, place, bytes);
      channel.write(first * block, place, bytes);
      written += bytes;
    } else {
      channel.read(first * block, place, bytes);
      REQUIRE(std::memcmp(place, model.data() + first * block, bytes) == 0);
      read += bytes;
    }
  }
  channel.sync();
  CHECK(channel.bytes_read() == read);
  CHECK(channel.bytes_written() == written);
}

TEST_CASE("stripes go round the files, and the files go away with the store", "[store]") {
  const IoMethod ring = GENERATE(from_range(rings()));
  const TemporaryFolder folder, other;
  {
    const SsdStore store({folder.path(), other.path()}, 5 * block, with_stripe(2 * block, ring));
    REQUIRE(store.files() ==
            Paths{folder / "spillway-store-0.bin", other / "spillway-store-1.bin"});
    const Arena memory(5 * block);
    for (std::size_t i = 0; i < 5; ++i) {
      std::memset(memory.data() + i * block, 'A' + static_cast<int>(i), block);
    }
    SsdStore::Channel channel(store);
    channel.write(0, memory.data(), 5 * block);
    channel.sync();
    // Stripes AB | CD | E: the first and third in file 0, the second in file 1.
    const auto run = [](char letter) { return std::string(block, letter); };
    CHECK(contents(store.files()[0]) == run('A') + run('B') + run('E'));
    CHECK(contents(store.files()[1]) == run('C') + run('D'));
  }
  CHECK(holds_nothing(folder.path()));
  CHECK(holds_nothing(other.path()));
}

TEST_CASE("a kept store is read again by the next run, and only with the same shape", "[store]") {
  const TemporaryFolder folder;
  // What one kind of ring has written, any other reads.
  SsdStore::Options options = over(GENERATE(from_range(rings())));
  const IoMethod reader = GENERATE(from_range(rings()));
  options.keep = true;
  const Arena memory(mebibyte);
  std::memset(memory.data(), 42, mebibyte);
  {
    const SsdStore store({folder.path()}, mebibyte, options);
    SsdStore::Channel(store).write(0, memory.data(), mebibyte);
  }
  options.reuse = true;
  {
    const auto other_size = [&] { SsdStore({folder.path()}, 2 * mebibyte, options); };
    CHECK(contains(message_of<MachineError>(other_size), "holds 1056768 bytes"));
    const auto other_folders = [&] { SsdStore({folder.path(), folder.path()}, mebibyte, options); };
    CHECK(contains(message_of<InputError>(other_folders), "spillway-store-1.bin is missing"));
  }
  options.keep = false;
  options.make_ring = factory_of(reader);
  {
    const SsdStore store({folder.path()}, mebibyte, options);
    const Arena back(mebibyte);
    SsdStore::Channel(store).read(0, back.data(), mebibyte);
    CHECK(std::memcmp(back.data(), memory.data(), mebibyte) == 0);
  }
  CHECK(holds_nothing(folder.path()));
}

TEST_CASE("a file left by a crash is replaced by zeros", "[store]") {
  const IoMethod ring = GENERATE(from_range(rings()));
  const TemporaryFolder folder;
  const Arena memory(mebibyte);
  std::memset(memory.data(), 'x', mebibyte);
  {
    SsdStore::Options options = over(ring);
    options.keep = true;
    const SsdStore left({folder.path()}, 3 * mebibyte, options);
    SsdStore::Channel(left).write(0, memory.data(), mebibyte);
  }
  const SsdStore store({folder.path()}, mebibyte);
  CHECK(contents(store.files()[0]) == std::string(mebibyte, '\0'));
}

TEST_CASE("a file that is not the store's is neither written, emptied nor removed", "[store]") {
  const TemporaryFolder folder, elsewhere;
  const std::string precious(3 * mebibyte, 'x');
  const std::filesystem::path stripe = folder / "spillway-store-0.bin";
  const auto refusal = [&](bool reuse) {
    SsdStore::Options options;
    options.reuse = reuse;
    return message_of<InputError>([&] { SsdStore({folder.path()}, mebibyte, options); });
  };
  for (const bool reuse : {false, true}) {
    INFO("to go on with a store: " << reuse);
    // A file of the user's under the store's name.
    write_file(stripe, precious);
    CHECK(contains(refusal(reuse), "spillway-store-0.bin is not a file of"));
    CHECK(read_file(stripe) == precious);
    std::filesystem::remove(stripe);
    // A symbolic link to one, and a dangling one that would make a file elsewhere.
    write_file(elsewhere / "precious", precious);
    for (const char* target : {"precious", "absent"}) {
      std::filesystem::create_symlink(elsewhere / target, stripe);
      CHECK(contains(refusal(reuse), "is a symbolic link"));
      CHECK(std::filesystem::is_symlink(stripe));
      std::filesystem::remove(stripe);
    }
    CHECK(read_file(elsewhere / "precious") == precious);
    CHECK(!std::filesystem::exists(elsewhere / "absent"));
    // A FIFO, which would hang whoever opens it, and a directory.
    REQUIRE(::mkfifo(stripe.c_str(), 0600) == 0);
    CHECK(contains(refusal(reuse), "is a FIFO, not a file"));
    std::filesystem::remove(stripe);
    std::filesystem::create_directory(stripe);
    CHECK(contains(refusal(reuse), "is a directory, not a file"));
    std::filesystem::remove(stripe);
  }
  // A store of ours that has a second name: a backup made of hard links.
  SsdStore::Options options;
  options.keep = true;
  { const SsdStore store({folder.path()}, mebibyte, options); }
  const std::string before = read_file(stripe);
  std::filesystem::create_hard_link(stripe, elsewhere / "backup");
  for (const bool reuse : {false, true})
    CHECK(contains(refusal(reuse), "has 2 names (hard links)"));
  CHECK(read_file(elsewhere / "backup") == before);
}

TEST_CASE("a name that becomes a link while the store is in use leads its removal nowhere",
          "[store]") {
  const TemporaryFolder folder, elsewhere;
  write_file(elsewhere / "precious", "text");
  const std::filesystem::path stripe = folder / "spillway-store-0.bin";
  {
    const SsdStore store({folder.path()}, mebibyte);
    std::filesystem::remove(stripe);
    std::filesystem::create_symlink(elsewhere / "precious", stripe);
    CHECK_THROWS_AS(store.require_files(), MachineError);
  }
  CHECK(read_file(elsewhere / "precious") == "text");
  CHECK(std::filesystem::is_symlink(stripe));
}

TEST_CASE("the files of a store are for their user alone", "[store]") {
  const TemporaryFolder folder;
  SsdStore::Options options;
  options.record_bytes = 8192;
  const SsdStore store({folder.path()}, mebibyte, options);
  for (const std::filesystem::path& file : store.files()) {
    CHECK((std::filesystem::status(file).permissions() & std::filesystem::perms::all) ==
          (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
  }
}

TEST_CASE("two runs cannot share a store", "[store]") {
  const TemporaryFolder folder, other;
  {
    const SsdStore store({folder.path()}, mebibyte);
    const Arena memory(block);
    SsdStore::Channel channel(store);
    std::memset(memory.data(), 5, block);
    channel.write(0, memory.data(), block);
    for (const bool reuse : {false, true}) {
      SsdStore::Options options;
      options.reuse = reuse;
      const auto second = [&] { SsdStore({folder.path()}, mebibyte, options); };
      const std::string message = message_of<MachineError>(second);
      CHECK(contains(message, "spillway-store-0.bin is in use by another run"));
      CHECK(contains(message, "directories of its own"));
    }
    channel.read(0, memory.data(), block);  // the first run is not disturbed
    CHECK(memory.data()[0] == std::byte{5});
    // The second directory is taken: what was created in the first one goes away again.
    const TemporaryFolder free;
    write_file(free / "unrelated", "");
    const SsdStore pair({other.path(), other.path()}, mebibyte);
    CHECK_THROWS_AS(SsdStore({free.path(), other.path()}, mebibyte), MachineError);
    CHECK(!std::filesystem::exists(free / "spillway-store-0.bin"));
  }
  const SsdStore store({folder.path()}, mebibyte);
  CHECK(store.size() == mebibyte);
}

TEST_CASE("a store larger than the disk is refused before anything is created", "[store]") {
  const TemporaryFolder folder;
  const auto two_exbibytes = [&] { SsdStore({folder.path()}, std::uint64_t{1} << 61); };
  const std::string message = message_of<MachineError>(two_exbibytes);
  CHECK(contains(message, "needs"));
  CHECK(contains(message, "has"));
  CHECK(contains(message, "in " + folder.path().string()));
  CHECK(contains(message, "other drives"));
  CHECK(holds_nothing(folder.path()));
}

TEST_CASE("directories on one small file system share its room", "[store]") {
  const SmallFilesystem disk("tmpfs", "size=4m");
  if (!disk.mounted()) {
    WARN("skipped: " << disk.reason());
    return;
  }
  // 3 MiB fit; 6 MiB do not, though 3 MiB in each of two directories would, looked at one by one.
  const Paths twice = {disk.path(), disk.path()};
  const std::string message = message_of<MachineError>([&] { SsdStore(twice, 6 * mebibyte); });
  CHECK(contains(message, "the SSD store needs 6.31 MB, has 4.19 MB in"));
  CHECK(holds_nothing(disk.path()));
  const SsdStore store(twice, 3 * mebibyte);
  const auto reserved = std::filesystem::space(disk.path()).available;
  CHECK(reserved <= mebibyte);  // real blocks were taken
}

TEST_CASE("when reserving fails half-way, nothing stays behind", "[store]") {
  const TemporaryFolder folder, other;
  std::string message;
  {
    const auto before = std::signal(SIGXFSZ, SIG_IGN);  // a write error, not the end of the program
    const LoweredLimit file_size(RLIMIT_FSIZE, mebibyte);
    message = message_of<MachineError>([&] {
      SsdStore({folder.path(), other.path()}, 4 * mebibyte);
    });
    std::signal(SIGXFSZ, before);
  }
  CHECK(contains(message, "cannot reserve 2.10 MB for"));
  CHECK(contains(message, "File too large"));
  CHECK(holds_nothing(folder.path()));
  CHECK(holds_nothing(other.path()));
}

TEST_CASE("bad directories and options are the user's input", "[store]") {
  const TemporaryFolder folder;
  CHECK(contains(message_of<InputError>([] { SsdStore({}, mebibyte); }), "no directory"));
  const auto missing = [&] { SsdStore({folder / "nowhere"}, mebibyte); };
  CHECK(contains(message_of<InputError>(missing),
                 (folder / "nowhere").string() + ": there is no such directory"));
  write_file(folder / "file", "text");
  CHECK_THROWS_AS(SsdStore({folder / "file"}, mebibyte), InputError);
  CHECK_THROWS_AS(SsdStore({folder.path()}, mebibyte, with_stripe(1000, IoMethod::threads)),
                  InputError);
  CHECK_THROWS_AS(SsdStore({folder.path()}, mebibyte, with_stripe(0, IoMethod::threads)),
                  InputError);
  SsdStore::Options no_queue;
  no_queue.queue_depth = 0;
  CHECK_THROWS_AS(SsdStore({folder.path()}, mebibyte, no_queue), InputError);
}

TEST_CASE("a directory without write permission is the machine's", "[store]") {
  const TemporaryFolder folder;
  std::filesystem::permissions(
      folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const std::string message = message_of<MachineError>(
      [&] { without_privileges([&] { SsdStore({folder.path()}, mebibyte); }); });
  CHECK(contains(message, "Permission denied"));
  CHECK(contains(message, "check the permissions"));
}

TEST_CASE("a file system without unbuffered I/O works through the page cache, with a warning",
          "[store]") {
  const IoMethod ring = GENERATE(from_range(rings()));
  const SmallFilesystem disk("ramfs", "");
  if (!disk.mounted()) {
    WARN("skipped: " << disk.reason());
    return;
  }
  const SsdStore store({disk.path()}, mebibyte, over(ring));
  REQUIRE(store.warnings().size() == 1);
  CHECK(contains(store.warnings()[0], "unbuffered I/O is not possible"));
  const Arena memory(mebibyte), back(mebibyte);
  SsdStore::Channel channel(store);
  channel.write(0, memory.data(), mebibyte);
  channel.sync();
  channel.read(0, back.data(), mebibyte);
  CHECK(std::memcmp(memory.data(), back.data(), mebibyte) == 0);
}

TEST_CASE(
    "a file system that takes O_DIRECT and refuses the transfer is used through the page cache",
    "[store]") {
  const IoMethod ring = GENERATE(from_range(rings()));
  INFO(to_string(ring));
  const TemporaryFolder folder;
  std::optional<SsdStore> store;
  on_thread([&] {  // where the first unbuffered read, of one block, fails
    if (!refuse_pread_of(block, EINVAL)) throw std::runtime_error("no seccomp filters here");
    store.emplace(Paths{folder.path()}, mebibyte, over(ring));
  });
  REQUIRE(store->warnings().size() == 1);
  CHECK(contains(store->warnings()[0], "unbuffered I/O is not possible (Invalid argument)"));
  const Arena memory(mebibyte), back(mebibyte);
  SsdStore::Channel channel(*store);
  channel.write(0, memory.data(), mebibyte);
  channel.sync();
  channel.read(0, back.data(), mebibyte);
  CHECK(std::memcmp(memory.data(), back.data(), mebibyte) == 0);
}

TEST_CASE("channels of two threads work side by side", "[store]") {
  const TemporaryFolder folder;
  const std::uint64_t half = 4 * mebibyte;
  const IoMethod ring = GENERATE(from_range(rings()));
  const SsdStore store({folder.path()}, 2 * half, with_stripe(64 * 1024, ring));
  const Arena memory(2 * half), back(2 * half);
  std::mt19937_64 random(1);
  fill_random(memory.data(), 2 * half, random);
  const auto lane = [&](std::uint64_t first) {
    SsdStore::Channel channel(store);
    channel.register_memory(memory.span());
    channel.write(first, memory.data() + first, half);
    channel.read(first, back.data() + first, half);
  };
  std::thread second([&] { lane(half); });
  lane(0);
  second.join();
  CHECK(std::memcmp(memory.data(), back.data(), 2 * half) == 0);
}

TEST_CASE("without locked memory, transfers work unregistered and a warning says so", "[store]") {
  const IoMethod ring = GENERATE(from_range(rings()));
  INFO(to_string(ring));
  const TemporaryFolder folder;
  const SsdStore store({folder.path()}, mebibyte, over(ring));
  const Arena memory(16 * mebibyte), back(mebibyte);
  std::vector<std::string> warnings;
  {
    const LoweredLimit locked(RLIMIT_MEMLOCK, mebibyte);
    without_privileges([&] {
      SsdStore::Channel channel(store);
      channel.register_memory(memory.span());
      warnings = channel.warnings();
      channel.write(0, memory.data(), mebibyte);
      channel.read(0, back.data(), mebibyte);
    });
  }
  // Threads lock no memory.
  REQUIRE(warnings.size() == (ring == IoMethod::uring ? 1 : 0));
  if (ring == IoMethod::uring) CHECK(contains(warnings[0], "ulimit -l"));
  CHECK(std::memcmp(memory.data(), back.data(), mebibyte) == 0);
}

TEST_CASE("memory over 1 GiB is registered in pieces, and a transfer may cross them",
          "[store][slow]") {
  const std::uint64_t gibibyte = std::uint64_t{1} << 30;
  if (available_memory() < 3 * gibibyte) {
    WARN("skipped: less than 3 GiB of memory available");
    return;
  }
  const IoMethod ring = GENERATE(from_range(rings()));
  const TemporaryFolder folder;
  const SsdStore store({folder.path()}, 4 * mebibyte, over(ring));
  const Arena memory(gibibyte + 8 * mebibyte), back(4 * mebibyte);
  std::byte* across = memory.data() + gibibyte - 2 * mebibyte - 8 * block;
  std::mt19937_64 random(1);
  fill_random(across, 4 * mebibyte, random);
  SsdStore::Channel channel(store);
  channel.register_memory(memory.span());
  CHECK(channel.warnings().empty());
  channel.write(0, across, 4 * mebibyte);
  channel.read(0, back.data(), 4 * mebibyte);
  CHECK(std::memcmp(across, back.data(), 4 * mebibyte) == 0);
}
