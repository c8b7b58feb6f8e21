#include "text/source/text_files.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "exec/data/dataset.hpp"
#include "tests/exec/io_test_support.hpp"

using namespace spillway;
using namespace spillway::test;
using namespace std::string_literals;
namespace fs = std::filesystem;

namespace {

std::string text_of(const Dataset& data) {
  std::vector<std::int32_t> tokens(data.size());
  data.tokens(0, tokens);
  return {tokens.begin(), tokens.end()};
}

void make_socket(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.string().size() < sizeof address.sun_path);
  std::strcpy(address.sun_path, path.c_str());
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM, 0));
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
}

std::string reason_of(const SkippedFiles& skipped, const fs::path& path) {
  for (const SkippedFiles::One& one : skipped.first)
    if (one.path == path) return one.reason;
  return "(not among the first)";
}

}  // namespace

TEST_CASE("links that lead out of a folder are skipped, those that stay in it are files of it") {
  const TemporaryFolder outside, folder;
  write_file(outside / "secret", "SECRET");
  write_file(outside / "data/secret", "SECRET");
  write_file(folder / "text", "text");
  write_file(folder / "sub/more", "more");
  fs::create_symlink(outside / "secret", folder / "absolute");
  fs::create_symlink("../" + outside.path().filename().string() + "/secret", folder / "relative");
  fs::create_symlink(outside / "data", folder / "directory");
  fs::create_symlink("text", folder / "sibling");
  fs::create_symlink("nowhere", folder / "dangling");
  const Dataset data({folder.path()}, 1);
  CHECK(text_of(data) == "textmoretext");  // sibling, sub/more, text
  CHECK(data.skipped().count == 4);
  CHECK(reason_of(data.skipped(), folder / "absolute") == "a link out of the folder");
  CHECK(reason_of(data.skipped(), folder / "relative") == "a link out of the folder");
  CHECK(reason_of(data.skipped(), folder / "directory") == "a link to a folder");
  CHECK(reason_of(data.skipped(), folder / "dangling") == "a link to nothing that can be read");
  // What the user names is taken, whatever leads there.
  CHECK(text_of(Dataset({folder / "absolute"}, 1)) == "SECRET");
  fs::create_directory_symlink(folder.path(), outside / "way in");
  CHECK(text_of(Dataset({outside / "way in"}, 1)) == "textmoretext");
}

TEST_CASE("pipes, sockets and devices are skipped in a folder and refused where named, at once") {
  const TemporaryFolder folder;
  write_file(folder / "text", "text");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  make_socket(folder / "socket");
  fs::create_symlink("/dev/zero", folder / "zeros");
  fs::create_symlink("pipe", folder / "to pipe");
  const Dataset data({folder.path()}, 1);
  CHECK(text_of(data) == "text");
  CHECK(reason_of(data.skipped(), folder / "pipe") == "a named pipe");
  CHECK(reason_of(data.skipped(), folder / "socket") == "a socket");
  CHECK(reason_of(data.skipped(), folder / "zeros") == "a link to a device");
  CHECK(reason_of(data.skipped(), folder / "to pipe") == "a link to a named pipe");
  for (const auto& path : {folder / "pipe", folder / "socket", fs::path("/dev/zero")}) {
    CHECK_THAT(message_of<InputError>([&] { Dataset({path}, 1); }),
               Catch::Contains(path.string() + " is neither a file nor a folder"));
  }
}

TEST_CASE("hidden files and folders are left alone unless they are named") {
  const TemporaryFolder folder;
  write_file(folder / "text", "text");
  write_file(folder / ".git/config", "[core]");
  write_file(folder / ".env", "PASSWORD=1");
  fs::create_symlink(".env", folder / "environment");
  const Dataset data({folder.path()}, 1);
  CHECK(text_of(data) == "text");
  CHECK(data.skipped().count == 3);  // a folder counts once
  CHECK(reason_of(data.skipped(), folder / ".git") == "hidden");
  CHECK(reason_of(data.skipped(), folder / "environment") == "a link to a hidden file");
  CHECK(text_of(Dataset({folder / ".git"}, 1)) == "[core]");
}

TEST_CASE("archives and binaries are skipped in a folder, refused where named, taken where told") {
  const TemporaryFolder folder;
  const std::string zip = "PK\x03\x04" + std::string(100, 'x');
  write_file(folder / "a.zip", zip);
  write_file(folder / "b.txt", "text");
  write_file(folder / "c.bin", "0\0\0\0"s);
  // Text at first sight, and then not.
  write_file(folder / "d.log", std::string(100'000, 'x') + std::string(1000, '\0'));
  const Dataset data({folder.path()}, 1);
  CHECK(text_of(data) == "text");
  CHECK(data.files().size() == 1);
  CHECK(data.skipped().text() ==
        "3 skipped: " + (folder / "a.zip").string() + " (a zip archive), " +
            (folder / "c.bin").string() + " (binary (3 of 4 bytes are zero)), " +
            (folder / "d.log").string() + " (binary (1000 of 101000 bytes are zero))");
  const std::string refused = message_of<InputError>([&] { Dataset({folder / "a.zip"}, 1); });
  CHECK_THAT(refused, Catch::Contains("a.zip is a zip archive, not text"));
  CHECK_THAT(refused, Catch::Contains("unpack") && Catch::Contains("binary_data"));
  const Dataset all({folder.path()}, 1, Dataset::default_memory_limit, true);
  CHECK(all.size() == zip.size() + 4 + 4 + 101'000);
  CHECK(all.skipped().count == 0);
  fs::remove(folder / "b.txt");
  CHECK_THAT(message_of<InputError>([&] { Dataset({folder.path()}, 1); }),
             Catch::Contains("there is no file in") && Catch::Contains("that is text: 3 skipped"));
  // Binaries do not count against the limit.
  write_file(folder / "b.txt", "text");
  fs::remove(folder / "d.log");
  CHECK(Dataset({folder.path()}, 1, 4).size() == 4);
}

TEST_CASE("names that would disturb a terminal are told in characters that do not") {
  const TemporaryFolder folder;
  write_file(folder / "text", "text");
  write_file(folder / "\x1b]0;owned\x07\n", "\0\0"s);
  const Dataset data({folder.path()}, 1);
  CHECK_THAT(data.skipped().text(), Catch::Contains("/\\x1b]0;owned\\x07\\x0a ("));
  for (const char character : data.skipped().text()) CHECK(character >= ' ');
}

TEST_CASE("many skipped files are counted, and the first are named") {
  const TemporaryFolder folder;
  write_file(folder / "text", "text");
  for (int i = 0; i < 20; ++i) write_file(folder / ("." + std::to_string(i)), "hidden");
  const Dataset data({folder.path()}, 1);
  CHECK(data.skipped().count == 20);
  CHECK(data.skipped().first.size() == SkippedFiles::most_named);
  CHECK_THAT(data.skipped().text(), Catch::EndsWith(", ..."));
  CHECK(Dataset({folder.path(), folder / ".", folder.path()}, 1).skipped().count == 20);
}

TEST_CASE("folders without end are left at some depth") {
  const TemporaryFolder folder;
  write_file(folder / "text", "text");
  fs::path deep = folder.path();
  for (int i = 0; i < 120; ++i) fs::create_directory(deep = deep / "d");
  const Dataset data({folder.path()}, 1);
  CHECK(data.skipped().count == 1);
  CHECK_THAT(data.skipped().text(), Catch::Contains("more than 100 folders deep"));
}

TEST_CASE("a folder that is changed while it is read gives away no file outside of it, nor hangs") {
  const TemporaryFolder outside, folder;
  write_file(outside / "secret", "SECRET");
  write_file(outside / "inner/f", "SECRET");
  write_file(folder / "a", "text");
  write_file(folder / "inner/f", "text");
  write_file(folder / "z", "text");
  std::atomic<bool> stop{false};
  std::thread adversary([&] {
    const auto replace = [&](const char* name, const auto& make) {
      const fs::path next = folder / ".next";
      std::error_code ignored;
      fs::remove_all(next, ignored);
      make(next);
      // Exchanged in one go: at any time there is something under the name.
      ::renameat2(AT_FDCWD, next.c_str(), AT_FDCWD, (folder / name).c_str(), RENAME_EXCHANGE);
    };
    while (!stop) {
      replace("z", [&](const fs::path& at) { fs::create_symlink(outside / "secret", at); });
      replace("inner", [&](const fs::path& at) { fs::create_symlink(outside / "inner", at); });
      replace("z", [](const fs::path& at) { ::mkfifo(at.c_str(), 0600); });
      replace("z", [](const fs::path& at) { write_file(at, "text"); });
      replace("inner", [](const fs::path& at) { write_file(at / "f", "text"); });
    }
  });
  for (int round = 0; round < 500; ++round) {
    std::string text;
    try {
      text = text_of(Dataset({folder.path()}, 1));
    } catch (const InputError&) {  // a file has gone in this moment
    }
    if (text.find("SECRET") == std::string::npos) continue;
    stop = true;
    adversary.join();
    FAIL("round " << round << " has read " << text);
  }
  stop = true;
  adversary.join();
}
