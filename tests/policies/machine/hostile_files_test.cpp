// Files that nobody wrote by accident: what they say is refused, at the place where they say it,
// and takes neither the stack nor the memory.
#include <sys/stat.h>

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <string>

#include "policies/machine/machine.hpp"
#include "policies/model/model.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/machine/machine_text.hpp"
#include "tests/temporary_folder.hpp"

using namespace spillway;

namespace {

const std::string machine = small_machine + small_drives;

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

auto parse(const std::string& text) {
  return [text] { parse_machine(text, "m.toml"); };
}

}  // namespace

TEST_CASE("a key of a hundred thousand parts is refused before tables are made of it") {
  const std::string deep = repeated("a.", 100'000) + "a";
  check_error(parse("\n" + deep + " = 1"), "m.toml:2: a key has more than 16 parts", "");
  check_error(parse("[" + deep + "]"), "m.toml:1: a key has more than 16 parts", "");
  check_error(parse("[[" + deep + "]]"), "m.toml:1: a key has more than 16 parts", "");
  check_error(parse("x = {" + deep + " = 1}"), "m.toml:1: a key has more than 16 parts", "");
  check_error(parse("x = \"\"\"\n.\"\\\"\n\"\"\"\n" + repeated("\"a\" . ", 100'000) + "'a' = 1"),
              "m.toml:4: a key has more than 16 parts", "");
  check_error([&] { parse_model(deep + " = 1", "model.toml"); },
              "model.toml:1: a key has more than 16 parts", "");
}

TEST_CASE("dots in strings, comments and numbers are not parts of a key") {
  const std::string dots = repeated(".", 100);
  CHECK_NOTHROW(
      parse("# " + dots + " \" '\ndescription = \"" + dots + "\\\"" + dots + "\"\n" + machine)());
  CHECK_NOTHROW(parse("description = '" + dots + "\\'\n" + machine)());
  CHECK_NOTHROW(
      parse("description = \"\"\"\n" + dots + "\"\"\n'''" + dots + "\"\"\"\n" + machine)());
  CHECK_NOTHROW(parse(machine + "[[kernel]]\nkind = \"forward\"\nshape = \"gpt\"\nmedian_ns = 1\n" +
                      "samples_ns = [" + repeated("\n1, ", 100) + "]\nspread = 1.5\n")());
}

TEST_CASE("nesting of arrays and inline tables has an end") {
  for (const char* open : {"[", "{a="}) {
    CHECK_THROWS_AS(parse("x = " + repeated(open, 100'000))(), InputError);
  }
}

TEST_CASE("rates that come out infinite are refused, and not written as inf") {
  std::string text = machine;
  text.replace(text.find("cores = 8"), 9, "cores = 1e300\nadam_bytes_per_param = 1e-10");
  text.replace(text.find("56GB/s"), 6, "1e300B/s");
  check_error(parse(text), "m.toml:9:1: host.adam_rate: what follows from the other keys",
              "host.adam_bytes_per_param");
}

TEST_CASE("a depth of requests that no drive has is refused, since other drives would scale it") {
  check_error(parse(machine + "[[ssd.by_queue_depth]]\ndepth = 1e308\nread = 1\nwrite = 1\n"),
              "m.toml:19:9: depth: 1e+308 requests in flight are too many", "measured with");
}

TEST_CASE("a file of settings that has no end is not read to its end") {
  check_error([] { load_machine("/dev/zero"); }, "/dev/zero: is no regular file", "TOML");
  check_error([] { load_model("/dev/zero"); }, "/dev/zero: is no regular file", "TOML");

  // Nobody writes to the FIFO: a read would wait for ever.
  const test::TemporaryFolder folder;
  const std::string fifo = (folder / "fifo").string();
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  check_error([&] { load_machine(fifo); }, fifo + ": is no regular file", "TOML");

  const std::string large = (folder / "large.toml").string();
  std::ofstream(large) << machine;
  std::filesystem::resize_file(large, std::uintmax_t{1} << 40);  // a hole: takes no space
  check_error([&] { load_machine(large); }, large + ": holds more than 16 MiB", "TOML");
}
