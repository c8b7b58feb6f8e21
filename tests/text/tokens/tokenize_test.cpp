#include "text/tokens/tokenize.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "base/errors.hpp"
#include "test_paths.hpp"
#include "tests/temporary_folder.hpp"
#include "text/tokens/folder_lock.hpp"
#include "text/tokens/source_hash.hpp"
#include "text/tokens/token_cache.hpp"

using namespace spillway;
using namespace spillway::test;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t part_bytes = 2000, shard_tokens = 9000;

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Files of lines of random letters; about 100 kB.
void write_texts(const fs::path& folder) {
  std::mt19937 random(3);
  for (int file = 0; file < 20; ++file) {
    std::string text;
    while (text.size() < 5000) {
      for (unsigned i = 0; i < 10 + random() % 60; ++i)
        text += static_cast<char>('a' + random() % 26);
      text += '\n';
    }
    write_text(folder / ("text" + std::to_string(file) + ".txt"), text);
  }
}

Source source_of(const fs::path& path) {
  SourceSettings settings;
  settings.paths = {path};
  return Source(settings, part_bytes);
}

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() == ".lock") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

TokenizeSettings settings_for(const fs::path& folder, int threads) {
  TokenizeSettings settings;
  settings.folder = folder;
  settings.threads = threads;
  settings.shard_tokens = shard_tokens;
  settings.source_hash = 4;
  return settings;
}

// Tokenizes in a process that kills itself once so many parts are done.
void tokenize_and_die(const Source& source, const TokenizeSettings& settings,
                      std::uint64_t after_parts) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    TokenizeListener listener;
    listener.progress = [&](const TokenizeProgress& progress) {
      if (progress.parts >= after_parts) ::kill(::getpid(), SIGKILL);
    };
    const auto tokenizer = make_byte_tokenizer();
    tokenize(source, *tokenizer, settings, listener);
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
}

}  // namespace

TEST_CASE("tokenizing gives the same bytes by any number of threads") {
  const TemporaryFolder texts, one, four;
  write_texts(texts.path());
  const Source source = source_of(texts.path());
  const auto tokenizer = make_byte_tokenizer();
  REQUIRE(source.parts().size() > 40);
  CHECK(tokenize(source, *tokenizer, settings_for(one.path(), 1)).finished);
  CHECK(tokenize(source, *tokenizer, settings_for(four.path(), 4)).finished);
  CHECK(files_in(one.path()).size() > 5);
  CHECK(files_in(one.path()) == files_in(four.path()));

  const TokenCorpus corpus = TokenCorpus::open(one.path());
  corpus.verify();
  std::vector<Token> tokens(corpus.tokens());
  corpus.read(0, tokens);
  std::string expected;
  for (const Source::File& file : source.files())
    expected += files_in(texts.path()).at(file.file.path().filename().string());
  CHECK(tokenizer->decode(tokens) == expected);
}

TEST_CASE("tokenizing goes on after kill -9, and ends in the same bytes") {
  const TemporaryFolder texts, whole;
  write_texts(texts.path());
  const Source source = source_of(texts.path());
  const auto tokenizer = make_byte_tokenizer();
  tokenize(source, *tokenizer, settings_for(whole.path(), 2));
  for (const std::uint64_t killed_after : {1u, 8u, 23u, 37u}) {
    const TemporaryFolder folder;
    INFO("killed after " << killed_after << " parts");
    tokenize_and_die(source, settings_for(folder.path(), 2), killed_after);
    const std::size_t finished_files = static_cast<std::size_t>(
        std::count_if(fs::directory_iterator(folder.path()), fs::directory_iterator(),
                      [](const auto& entry) { return entry.path().extension() == ".tokens"; }));
    const TokenizeResult result = tokenize(source, *tokenizer, settings_for(folder.path(), 3));
    CHECK(result.finished);
    CHECK(result.kept_files == finished_files);
    if (killed_after > 8) CHECK(finished_files > 0);
    CHECK(result.counts.tokens == TokenCorpus::open(folder.path()).tokens());
    CHECK(files_in(folder.path()) == files_in(whole.path()));
  }
}

TEST_CASE("tokenizing again keeps what is whole, makes what is damaged, and refuses other tokens") {
  const TemporaryFolder texts, folder;
  write_texts(texts.path());
  const Source source = source_of(texts.path());
  const auto tokenizer = make_byte_tokenizer();
  TokenizeSettings settings = settings_for(folder.path(), 2);
  const std::uint32_t files = tokenize(source, *tokenizer, settings).files;
  const auto before = files_in(folder.path());
  CHECK(tokenize(source, *tokenizer, settings).kept_files == files);

  std::string damaged = before.at("00002.tokens");
  damaged[500] = static_cast<char>(damaged[500] ^ 1);
  write_text(folder / "00002.tokens", damaged);
  CHECK(tokenize(source, *tokenizer, settings).kept_files == 2);
  CHECK(files_in(folder.path()) == before);

  settings.source_hash = 5;
  CHECK_THROWS_WITH(tokenize(source, *tokenizer, settings),
                    Catch::Contains("holds tokens of something else"));
  CHECK(files_in(folder.path()) == before);
  settings.replace_others = true;
  CHECK(tokenize(source, *tokenizer, settings).kept_files == 0);
}

TEST_CASE("tokenizing stops where it is asked to, and goes on there") {
  const TemporaryFolder texts, folder, whole;
  write_texts(texts.path());
  const Source source = source_of(texts.path());
  const auto tokenizer = make_byte_tokenizer();
  TokenizeListener listener;
  std::uint64_t parts = 0;
  listener.progress = [&](const TokenizeProgress& progress) { parts = progress.parts; };
  listener.stop = [&] { return parts >= 20; };
  CHECK(!tokenize(source, *tokenizer, settings_for(folder.path(), 2), listener).finished);
  CHECK_THROWS_WITH(TokenCorpus::open(folder.path()), Catch::Contains("is not finished"));
  CHECK(tokenize(source, *tokenizer, settings_for(folder.path(), 2)).kept_files > 0);
  tokenize(source, *tokenizer, settings_for(whole.path(), 2));
  CHECK(files_in(folder.path()) == files_in(whole.path()));
}

TEST_CASE("the hash of a source is of its files' contents") {
  const TemporaryFolder texts, memory;
  write_text(texts / "a.txt", "one text\n");
  write_text(texts / "b.txt", "another\n");
  const Source source = source_of(texts.path());
  const std::uint64_t hash = source_hash(source, memory / "files.txt");
  CHECK(hash == source_hash(source_of(texts.path())));
  write_text(texts / "b.txt", "anotheR\n");
  CHECK(hash != source_hash(source_of(texts.path()), memory / "files.txt"));
  write_text(texts / "b.txt", "another\n");
  CHECK(hash == source_hash(source_of(texts.path()), memory / "files.txt"));
}

TEST_CASE(
    "files that have not changed are not read again, unless what is known of them is damaged") {
  const TemporaryFolder memory;
  const fs::path path = memory / "files.txt";
  // A file that was written long ago: what has just changed is not remembered.
  const Source source = source_of(SPILLWAY_SOURCE_DIR "/README.md");
  const std::uint64_t hash = source_hash(source, path);
  const std::string known = files_in(memory.path()).at("files.txt");
  REQUIRE(known.size() > 60);
  const auto hashes_to = [&](std::string lines) {
    write_text(path, lines + fmt::format("{:016x}\n", XXH3_64bits(lines.data(), lines.size())));
    return source_hash(source, path);
  };
  std::string lines = known.substr(0, known.size() - 17);
  CHECK(hashes_to(lines) == hash);
  lines[lines.size() - 2] = lines[lines.size() - 2] == '0' ? '1' : '0';
  CHECK(hashes_to(lines) != hash);   // it is taken as known
  lines[lines.find('\n') + 1] ^= 1;  // of another device
  CHECK(hashes_to(lines) == hash);
  write_text(path, known.substr(0, known.size() - 3));
  CHECK(source_hash(source, path) == hash);
  write_text(path, std::string(1000, 'x'));
  CHECK(source_hash(source, path) == hash);
}

TEST_CASE("the cache: found again, made again where damaged or other, listed and removed") {
  const TemporaryFolder texts, folder;
  write_texts(texts.path());
  const TokenCache cache(folder / "tokens");
  const auto tokenizer = make_byte_tokenizer();
  int told = 0;
  TokenCache::Listener listener;
  listener.tokenizing.progress = [&](const TokenizeProgress&) { ++told; };
  const auto get = [&] {
    told = 0;
    return *cache.tokens(source_of(texts.path()), *tokenizer, {}, 2, listener);
  };
  const std::uint64_t hash = get().hash();
  CHECK(told > 0);
  CHECK(get().hash() == hash);
  CHECK(told == 0);
  const auto entries = cache.entries();
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].finished);
  CHECK(entries[0].tokens == get().tokens());
  CHECK_THAT(entries[0].made_from, Catch::Contains("bytes"));

  const fs::path file = cache.folder() / entries[0].name / "00000.tokens";
  fs::resize_file(file, fs::file_size(file) - 1);
  CHECK(!cache.entries()[0].finished);
  CHECK(get().hash() == hash);
  CHECK(told > 0);

  write_text(texts / "text3.txt", "changed\n");
  CHECK(get().hash() != hash);
  CHECK(cache.entries().size() == 2);
  for (const auto& entry : cache.entries()) cache.remove(entry.name);
  CHECK(cache.entries().empty());
  CHECK_THROWS_AS(cache.remove("../tokens"), InputError);
}

TEST_CASE("the cache: what is of no use goes, what another program writes to stays") {
  const TemporaryFolder texts, folder;
  write_texts(texts.path());
  const TokenCache cache(folder / "tokens");
  const auto tokenizer = make_byte_tokenizer();
  const auto names = [&] {
    std::set<std::string> found;
    for (const TokenCache::Entry& entry : cache.entries()) {
      CHECK(entry.bytes > 0);
      found.insert(entry.name);
    }
    return found;
  };
  // Refused, and nothing is left of it.
  write_text(texts / "bad.jsonl", "{\"text\": \"a\"}\n{\n");
  CHECK_THROWS_AS(cache.tokens(source_of(texts / "bad.jsonl"), *tokenizer, {}, 1), InputError);
  CHECK(names().empty());
  fs::remove(texts / "bad.jsonl");

  const std::string begun = "00000000000000aa", old = "00000000000000bb",
                    empty = "00000000000000cc", busy = "00000000000000dd";
  const Source source = source_of(texts.path());
  for (const std::string& name : {begun, old})
    tokenize_and_die(source, settings_for(cache.folder() / name, 1), 37);
  const timespec long_ago[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
  REQUIRE(::utimensat(AT_FDCWD, (cache.folder() / old / ".lock").c_str(), long_ago, 0) == 0);
  for (const std::string& name : {empty, busy}) fs::create_directory(cache.folder() / name);
  {
    const FolderLock lock(Directory(cache.folder() / busy), {}, {});
    cache.tokens(source, *tokenizer, {}, 1);
    REQUIRE(cache.entries().size() == 3);
    CHECK(fs::exists(cache.folder() / begun));
    CHECK(fs::exists(cache.folder() / busy));
    cache.remove_unfinished(true);
    CHECK(fs::exists(cache.folder() / busy));
  }
  cache.remove_unfinished(true);
  CHECK(names().size() == 1);
  CHECK(cache.entries().front().finished);
}

TEST_CASE("the cache: many at once come to the same tokens") {
  const TemporaryFolder texts, folder;
  write_texts(texts.path());
  const TokenCache cache(folder / "tokens");
  std::vector<std::uint64_t> hashes(6);
  std::vector<std::thread> threads;
  for (std::uint64_t& hash : hashes) {
    threads.emplace_back([&] {
      const auto tokenizer = make_byte_tokenizer();
      hash = cache.tokens(source_of(texts.path()), *tokenizer, {}, 2)->hash();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::set<std::uint64_t>(hashes.begin(), hashes.end()).size() == 1);
}
