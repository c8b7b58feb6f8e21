#include "experiments/calibrate/machine_cache.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void overwrite(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

Machine some_machine() { return load_machine("testbed"); }

}  // namespace

TEST_CASE("what is kept is what is loaded, for this identity and no other") {
  const test::TemporaryFolder folder;
  const MachineCache cache(folder / "cache/spillway", "spillway 1\nthis device\n");
  CHECK_FALSE(cache.load());
  REQUIRE(cache.keep(some_machine()).empty());
  REQUIRE(cache.load());
  CHECK(machine_to_toml(*cache.load()) == machine_to_toml(some_machine()));
  for (const char* other : {"spillway 2\nthis device\n", "spillway 1\nanother device\n", ""}) {
    const MachineCache elsewhere(folder / "cache/spillway", other);
    CHECK(elsewhere.file() != cache.file());
    CHECK_FALSE(elsewhere.load());
    // Not even where the file's name says so.
    fs::copy_file(cache.file(), elsewhere.file());
    CHECK_FALSE(elsewhere.load());
  }
  // Its owner's alone, and nothing is left beside it.
  struct stat status {};
  REQUIRE(::stat(cache.file().c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
  REQUIRE(::stat((folder / "cache/spillway").c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0700);
  for (const auto& entry : fs::directory_iterator(folder / "cache/spillway"))
    CHECK(entry.path().filename().string().starts_with("machine-"));
}

TEST_CASE("a kept machine that is damaged at any byte, cut or grown is not loaded") {
  const test::TemporaryFolder folder;
  const MachineCache cache(folder / "spillway", "identity");
  REQUIRE(cache.keep(some_machine()).empty());
  const std::string whole = contents(cache.file());
  for (std::size_t at = 0; at < whole.size(); at += at < 200 ? 1 : 41) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    overwrite(cache.file(), damaged);
    INFO("byte " << at);
    REQUIRE_FALSE(cache.load());
  }
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), whole + "x", std::string("\0\n\n", 3)}) {
    overwrite(cache.file(), text);
    CHECK_FALSE(cache.load());
  }
  // Kept anew, it is whole again.
  REQUIRE(cache.keep(some_machine()).empty());
  CHECK(cache.load());
}

TEST_CASE("a cache is never read or written through a link, a pipe or another's file") {
  const test::TemporaryFolder folder;
  const fs::path precious = folder / "precious";
  overwrite(precious, "precious");
  const MachineCache cache(folder / "spillway", "identity");
  REQUIRE(cache.keep(some_machine()).empty());
  const std::string whole = contents(cache.file());
  // The file is a link: not followed, and replaced by a file.
  fs::remove(cache.file());
  overwrite(folder / "copy", whole);
  fs::create_symlink(folder / "copy", cache.file());
  CHECK_FALSE(cache.load());
  fs::remove(cache.file());
  fs::create_symlink(precious, cache.file());
  CHECK(cache.keep(some_machine()).empty());
  CHECK(contents(precious) == "precious");
  CHECK_FALSE(fs::is_symlink(cache.file()));
  CHECK(cache.load());
  // So is a link in the way of what is written first.
  const fs::path next = folder / "spillway" /
                        ("." + cache.file().filename().string() + "." + std::to_string(::getpid()));
  fs::create_symlink(precious, next);
  CHECK(cache.keep(some_machine()).empty());
  CHECK(contents(precious) == "precious");
  // Others may write to it: it may say anything.
  fs::permissions(cache.file(), fs::perms::group_write, fs::perm_options::add);
  CHECK_FALSE(cache.load());
  // A pipe does not make it wait.
  fs::remove(cache.file());
  REQUIRE(::mkfifo(cache.file().c_str(), 0600) == 0);
  CHECK_FALSE(cache.load());
  // A folder that is a link is not used at all.
  const MachineCache linked(folder / "link", "identity");
  fs::create_directory(folder / "target");
  fs::create_directory_symlink(folder / "target", folder / "link");
  CHECK_FALSE(linked.keep(some_machine()).empty());
  CHECK_FALSE(linked.load());
  CHECK(fs::is_empty(folder / "target"));
}

TEST_CASE("of many kept machines the oldest go, and nothing else does") {
  const test::TemporaryFolder folder;
  const MachineCache first(folder.path(), "identity");
  REQUIRE(first.keep(some_machine()).empty());
  fs::last_write_time(first.file(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  overwrite(folder / "notes.txt", "precious");
  overwrite(folder / "machine-of-mine.toml", "precious");
  for (std::size_t i = 0; i < MachineCache::most_files; ++i) {
    CHECK(fs::exists(first.file()));
    REQUIRE(MachineCache(folder.path(), std::to_string(i)).keep(some_machine()).empty());
  }
  CHECK_FALSE(fs::exists(first.file()));
  CHECK(MachineCache(folder.path(), "0").load());
  CHECK(fs::exists(folder / "notes.txt"));
  CHECK(fs::exists(folder / "machine-of-mine.toml"));
}

TEST_CASE("a cache that cannot be written says why") {
  const test::TemporaryFolder folder;
  overwrite(folder / "file", "");
  const MachineCache cache(folder / "file/spillway", "identity");
  CHECK_THAT(cache.keep(some_machine()), Catch::Contains("file/spillway: Not a directory"));
  CHECK_FALSE(cache.load());
}

TEST_CASE("the cache folder is where the user keeps such things") {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  const std::string old_cache = cache == nullptr ? "" : cache,
                    old_home = home == nullptr ? "" : home;
  ::setenv("XDG_CACHE_HOME", "/somewhere", 1);
  CHECK(user_cache_folder() == fs::path("/somewhere/spillway"));
  // One that is not absolute does not count.
  ::setenv("XDG_CACHE_HOME", "somewhere", 1);
  ::setenv("HOME", "/home/me", 1);
  CHECK(user_cache_folder() == fs::path("/home/me/.cache/spillway"));
  ::unsetenv("XDG_CACHE_HOME");
  CHECK(user_cache_folder() == fs::path("/home/me/.cache/spillway"));
  ::unsetenv("HOME");
  CHECK_FALSE(user_cache_folder());
  if (cache != nullptr) ::setenv("XDG_CACHE_HOME", old_cache.c_str(), 1);
  if (home != nullptr) ::setenv("HOME", old_home.c_str(), 1);
}

}  // namespace spillway
