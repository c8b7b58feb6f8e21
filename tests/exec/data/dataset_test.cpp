#include "exec/data/dataset.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "tests/exec/io_test_support.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

struct Batch {
  std::vector<std::int32_t> tokens, targets;
  bool operator==(const Batch&) const = default;
};

Batch batch(const Dataset& data, std::int64_t step, std::int64_t first, std::int64_t count,
            std::int64_t length) {
  const auto size = static_cast<std::size_t>(count * length);
  Batch result{std::vector<std::int32_t>(size), std::vector<std::int32_t>(size)};
  data.batch(step, first, count, length, result.tokens.data(), result.targets.data());
  return result;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Takes files of any kind.
Dataset of_bytes(const std::filesystem::path& path, std::uint64_t seed) {
  return Dataset({path}, seed, Dataset::default_memory_limit, true);
}

std::string text_of(const Dataset& data) {
  std::vector<std::int32_t> tokens(data.size());
  data.tokens(0, tokens);
  return {tokens.begin(), tokens.end()};
}

// A folder with one file of `bytes` bytes in which every position is recognisable by its
// neighbours.
struct Corpus {
  explicit Corpus(std::size_t bytes) {
    std::mt19937 random(7);
    for (std::size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(random()));
    write_file(folder / "text", text);
  }
  TemporaryFolder folder;
  std::string text;
};

}  // namespace

TEST_CASE("files of folders are concatenated in sorted order, each once") {
  const TemporaryFolder folder;
  write_file(folder / "b.txt", "BB");
  write_file(folder / "a/z.txt", "Z");
  write_file(folder / "a/deep/er.txt", "DDD");
  write_file(folder / "c.txt", "");
  std::filesystem::create_symlink(folder / "nowhere", folder / "dangling");
  std::filesystem::create_symlink(folder / "b.txt",
                                  folder / "link.txt");  // a regular file, by another name
  ::mkfifo((folder / "fifo").c_str(), 0600);
  const std::string expected = "DDDZBBBB";
  const Dataset data({folder.path()}, 1);
  CHECK(text_of(data) == expected);
  REQUIRE(data.files().size() == 5);
  CHECK(data.files()[1].path == folder / "a/z.txt");
  CHECK(data.files()[1].first_byte == 3);
  CHECK(data.files()[1].bytes == 1);

  // Neither the order of the arguments nor naming a file twice makes a difference.
  const Dataset again({folder / "b.txt", folder.path(), folder / "a/../b.txt"}, 1);
  CHECK(text_of(again) == expected);
}

TEST_CASE("targets are the bytes after the tokens, and every token is a byte of the corpus") {
  const Corpus corpus(10'000);
  const Dataset data = of_bytes(corpus.folder.path(), 3);
  const std::int64_t length = 33;
  const Batch drawn = batch(data, 5, 0, 20, length);
  for (std::size_t row = 0; row < 20; ++row) {
    std::string sequence;
    for (std::size_t i = 0; i < 33; ++i) {
      sequence.push_back(static_cast<char>(drawn.tokens[row * 33 + i]));
    }
    sequence.push_back(static_cast<char>(drawn.targets[row * 33 + 32]));
    REQUIRE(contains(corpus.text, sequence));
    for (std::size_t i = 0; i + 1 < 33; ++i) {
      REQUIRE(drawn.targets[row * 33 + i] == drawn.tokens[row * 33 + i + 1]);
    }
  }
  CHECK(*std::min_element(drawn.tokens.begin(), drawn.tokens.end()) >= 0);
  CHECK(*std::max_element(drawn.tokens.begin(), drawn.tokens.end()) <= 255);
}

TEST_CASE("a batch depends on seed, step and sequence index, not on how it is asked for") {
  const Corpus corpus(100'000);
  const Dataset data = of_bytes(corpus.folder.path(), 11);
  const Batch whole = batch(data, 4, 0, 12, 16);
  for (const std::int64_t micro_batch : {1, 2, 3, 4, 6}) {
    Batch joined;
    for (std::int64_t first = 0; first < 12; first += micro_batch) {
      const Batch part = batch(data, 4, first, micro_batch, 16);
      joined.tokens.insert(joined.tokens.end(), part.tokens.begin(), part.tokens.end());
      joined.targets.insert(joined.targets.end(), part.targets.begin(), part.targets.end());
    }
    CHECK(joined == whole);
  }
  CHECK(batch(of_bytes(corpus.folder.path(), 11), 4, 0, 12, 16) == whole);
  CHECK_FALSE(batch(of_bytes(corpus.folder.path(), 12), 4, 0, 12, 16) == whole);
  CHECK_FALSE(batch(data, 5, 0, 12, 16) == whole);
  CHECK_FALSE(batch(data, 4, 1, 12, 16) == whole);
}

TEST_CASE("the sequences of a seed never change from one version to the next") {
  // A resumed run must see what it would have seen: these numbers are part of the format.
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  write_file(folder / "text", text);
  const Dataset data = of_bytes(folder.path(), 42);
  CHECK(batch(data, 0, 0, 4, 1).tokens == std::vector<std::int32_t>{114, 41, 79, 111});
  CHECK(batch(data, 1000, 7, 4, 1).tokens == std::vector<std::int32_t>{186, 83, 124, 164});
}

TEST_CASE("starts are spread evenly from the first to the last possible one") {
  // 12 bytes, T = 4: starts 0 .. 7, each with chance 1/8. Of 8000 draws 1000 +- 30 (one sigma)
  // each.
  const TemporaryFolder folder;
  write_file(folder / "text", "ABCDEFGHIJKL");
  const Dataset data({folder.path()}, 1);
  std::vector<int> count(8, 0);
  const Batch drawn = batch(data, 0, 0, 8000, 4);
  for (std::size_t row = 0; row < 8000; ++row) {
    const auto start = static_cast<std::size_t>(drawn.tokens[row * 4] - 'A');
    REQUIRE(start < 8);
    ++count[start];
  }
  for (const int times : count) CHECK(std::abs(times - 1000) < 180);  // six sigma
}

TEST_CASE("a corpus of T + 1 bytes has one sequence, of T bytes none") {
  const TemporaryFolder folder;
  write_file(folder / "text", "abcde");
  const Dataset data({folder.path()}, 1);
  CHECK(batch(data, 9, 9, 1, 4).tokens == std::vector<std::int32_t>{'a', 'b', 'c', 'd'});
  CHECK(batch(data, 9, 9, 1, 4).targets == std::vector<std::int32_t>{'b', 'c', 'd', 'e'});
  CHECK_NOTHROW(data.require(4, 256));
  const std::string message = message_of<InputError>([&] { data.require(5, 256); });
  CHECK(contains(message, "has 5 bytes, a sequence of 5 tokens needs 6"));
  CHECK(contains(message, (folder / "text").string()));
  CHECK(contains(message, "sequence = 4"));
  CHECK_THROWS_AS(batch(data, 0, 0, 1, 5), InputError);
  CHECK_THROWS_AS(data.require(0, 256), InputError);
}

TEST_CASE("a byte beyond the model's vocabulary is found and placed") {
  const TemporaryFolder folder;
  write_file(folder / "1", "plain text");
  write_file(folder / "2", "caf\xc3\xa9 noir");
  const Dataset data({folder.path()}, 1);
  CHECK_NOTHROW(data.require(4, 256));
  CHECK_NOTHROW(data.require(4, 50257));
  CHECK_NOTHROW(data.require(4, 0xc4));
  const std::string message = message_of<InputError>([&] { data.require(4, 128); });
  CHECK(contains(message, (folder / "2").string() + " holds the byte 195 at offset 3"));
  CHECK(contains(message, "vocabulary ends at 127"));
}

TEST_CASE("data that is not there, not readable, empty or too large is the user's input") {
  const TemporaryFolder folder;
  write_file(folder / "text", std::string(1000, 'x'));
  const auto load = [](const std::filesystem::path& path) {
    return [path] { Dataset({path}, 1); };
  };

  CHECK(contains(message_of<InputError>([] { Dataset({}, 1); }), ": data"));
  const std::string missing = message_of<InputError>(load(folder / "nowhere.txt"));
  CHECK(contains(missing, (folder / "nowhere.txt").string() + ": No such file or directory"));
  CHECK(contains(missing, "spelling"));
  CHECK(contains(message_of<InputError>(load(folder / "text/below")), "text/below"));

  std::filesystem::create_directory(folder / "empty");
  CHECK(contains(message_of<InputError>(load(folder / "empty")), "no file in"));
  write_file(folder / "nothing", "");
  CHECK(contains(message_of<InputError>(load(folder / "nothing")), "data is empty"));
  ::mkfifo((folder / "fifo").c_str(), 0600);
  CHECK(contains(message_of<InputError>(load(folder / "fifo")), "neither a file nor a folder"));
}

TEST_CASE("what does not fit in the memory for text is mapped: the same text, hash and batches") {
  const TemporaryFolder folder;
  std::mt19937 random(5);
  for (const char* name : {"a", "b", "c", "d"}) {
    std::string text;
    for (int i = 0; i < 1000; ++i) text.push_back(static_cast<char>('a' + random() % 26));
    write_file(folder / name, text);
  }
  const Dataset held({folder.path()}, 1);
  for (const std::uint64_t limit : {0u, 999u, 1000u, 2500u}) {
    const Dataset mapped({folder.path()}, 1, limit);
    CHECK(text_of(mapped) == text_of(held));
    CHECK(mapped.hash() == held.hash());
    CHECK(batch(mapped, 3, 0, 40, 200) == batch(held, 3, 0, 40, 200));
  }
  write_file(folder / "e", std::string("PK\3\4") + std::string(2000, 'x'));
  CHECK(Dataset({folder.path()}, 1, 0).skipped().count == 1);
}

TEST_CASE("a file of more than 4.29 GB is text like any other") {
  const TemporaryFolder folder;
  write_file(folder / "far", "");
  const std::uint64_t size = (std::uint64_t{5} << 30) + 3;
  std::filesystem::resize_file(folder / "far", size);  // all zeros, and none on the drive
  const Dataset data = of_bytes(folder / "far", 1);
  CHECK(data.size() == size);
  std::vector<std::int32_t> end(5, 1);
  data.tokens(size - 5, end);
  CHECK(end == std::vector<std::int32_t>(5, 0));
  CHECK(batch(data, 0, 0, 2, 8).targets == std::vector<std::int32_t>(16, 0));
}

TEST_CASE("the end of the text is held out: no batch sees it, and it is there in order") {
  const TemporaryFolder folder;
  std::string text(1000, 'a');
  for (std::size_t i = 900; i < 1000; ++i) text[i] = static_cast<char>('b' + i % 7);
  write_file(folder / "text", text);
  auto data = std::make_shared<Dataset>(std::vector<std::filesystem::path>{folder / "text"}, 1u);
  const std::uint64_t hash = data->hash();
  data->hold_out(0.1);
  CHECK(data->trained_bytes() == 900);
  CHECK(data->hash() != hash);
  const Batch drawn = batch(*data, 0, 0, 500, 16);
  CHECK(drawn.targets == std::vector<std::int32_t>(500 * 16, 'a'));
  const HeldOutBytes held(data, data->trained_bytes(), 4);
  CHECK(held.batches(16) == 2);  // (100 - 1) / 16 = 6 sequences
  std::string seen;
  for (std::int64_t step = 0; step < 2; ++step) {
    std::vector<std::int32_t> tokens(64), targets(64);
    held.batch(step, 0, 4, 16, tokens.data(), targets.data(), nullptr);
    std::int64_t counted = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      if (targets[i] == no_target) continue;
      ++counted;
      seen.push_back(static_cast<char>(targets[i]));
    }
    CHECK(held.counted_tokens(step, 4, 16) == counted);
  }
  CHECK(seen == text.substr(901, 96));
  CHECK_THROWS_WITH(held.require(100, 256), Catch::Contains("100 bytes are held out"));
}

TEST_CASE("files and folders without permission are named, even below others") {
  const TemporaryFolder folder;
  write_file(folder / "a/secret/text", "x");
  write_file(folder / "b/text", "x");
  std::filesystem::permissions(folder / "a/secret", std::filesystem::perms::none);
  std::filesystem::permissions(folder / "b/text", std::filesystem::perms::none);
  const auto message = [&](const std::string& name) {
    return message_of<InputError>(
        [&] { without_privileges([&] { Dataset({folder / name}, 1); }); });
  };
  const std::string secret =
      "cannot read " + (folder / "a/secret").string() + ": Permission denied";
  CHECK(contains(message("a/secret"), secret));
  CHECK(contains(message("a"), secret));
  CHECK(contains(message("b"),
                 "cannot read " + (folder / "b/text").string() + ": Permission denied"));
  CHECK(contains(message("b"), "check the permissions"));
  std::filesystem::permissions(folder / "a/secret", std::filesystem::perms::owner_all);
}

TEST_CASE("a file that reports no size is read to its end, within the limit") {
  // Files of /proc have size 0 and contents.
  const Dataset data({"/proc/self/status"}, 1);
  CHECK(data.size() > 100);
  CHECK_THROWS_AS(Dataset({"/proc/self/status"}, 1, 10), InputError);
}
