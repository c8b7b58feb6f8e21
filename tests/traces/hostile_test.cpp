// Files that nobody wrote by accident: refused without taking the stack or the memory.
#include <zlib.h>

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "tests/traces/example_traces.hpp"
#include "traces/perfetto.hpp"

namespace spillway {
namespace {

using Catch::Matchers::Contains;

std::string refusal(const std::string& path) {
  try {
    read_trace(path);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// A trace without events, with this text as the value of a key of its metadata, and these lanes.
std::string text_with(const std::string& metadata, const std::string& lanes = "") {
  return R"({"spillway":{"format":"spillway-trace","version":1,"lanes":[)" + lanes +
         R"(],"kinds":[],"phases":[],"tiers":[],"spans":0,"memory_samples":0},"otherData":{"a":)" +
         metadata + R"(},"traceEvents":[]})";
}

TEST_CASE("metadata that is nested a hundred thousand deep is refused") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.json");
  for (const auto& [open, close] : {std::pair{"[", "]"}, std::pair{"{\"a\":", "}"}}) {
    const auto nested = [&](int depth) {
      return text_with(repeated(open, depth) + "1" + repeated(close, depth));
    };
    write_text(path, nested(98));
    CHECK(refusal(path).empty());
    write_text(path, nested(100'000));
    CHECK_THAT(refusal(path), Contains("nested more than 100 deep"));
  }
  // Where nothing is looked at, too.
  write_text(path, "{\"x\":" + repeated("[", 100'000));
  CHECK_THAT(refusal(path), Contains("nested more than 100 deep"));
}

TEST_CASE("more names than a span can number are refused") {
  const TemporaryFolder folder;
  write_text(folder.file("t.json"), text_with("1", "\"a\"" + repeated(",\"a\"", 65'534)));
  CHECK(refusal(folder.file("t.json")).empty());
  write_text(folder.file("t.json"), text_with("1", "\"a\"" + repeated(",\"a\"", 65'535)));
  CHECK_THAT(refusal(folder.file("t.json")), Contains("a list of more than 65535 names"));
}

TEST_CASE("two kinds, phases or tiers of one name are refused: a span could be of either") {
  const TemporaryFolder folder;
  for (const char* list : {"kinds", "phases", "tiers"}) {
    std::string text = text_with("1");
    const std::string empty = "\"" + std::string(list) + "\":[";
    text.replace(text.find(empty), empty.size(), empty + "\"a\",\"b\",\"a\"");
    write_text(folder.file("t.json"), text);
    CHECK_THAT(refusal(folder.file("t.json")), Contains("are called \"a\""));
  }
  // A header that comes again gives all names again.
  const std::string text = text_with("1");
  const std::size_t begin = text.find("\"spillway\""), end = text.find("\"otherData\"");
  std::string twice = text;
  twice.replace(twice.find("\"kinds\":["), 9, "\"kinds\":[\"a\"");
  twice.insert(end + 3, twice.substr(begin, end + 3 - begin));
  write_text(folder.file("t.json"), twice);
  CHECK_THAT(refusal(folder.file("t.json")), Contains("are called \"a\""));
}

TEST_CASE("names that are objects or arrays are refused, whatever keys are in them") {
  const TemporaryFolder folder;
  for (const char* list : {"lanes", "kinds", "phases", "tiers"}) {
    for (const char* value : {"{\"a\":1}", "{\"tiers\":1}", "[]", "[[\"a\"]]"}) {
      INFO(list << " begin with " << value);
      std::string text = text_with("1");
      const std::string empty = "\"" + std::string(list) + "\":[";
      text.replace(text.find(empty), empty.size(), empty + value + ",\"b\"");
      write_text(folder.file("t.json"), text);
      CHECK_THAT(refusal(folder.file("t.json")), Contains("a name must be a string"));
    }
  }
}

TEST_CASE("a compressed file that grows a thousand times is refused before it fills the memory") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.json.gz"), spaces(1 << 20, ' ');
  const gzFile file = ::gzopen(path.c_str(), "wb9");
  REQUIRE(file != nullptr);
  for (int i = 0; i < 80; ++i) {
    REQUIRE(::gzwrite(file, spaces.data(), 1 << 20) == 1 << 20);
  }
  REQUIRE(::gzclose(file) == Z_OK);
  CHECK_THAT(refusal(path), Contains("decompresses to more than 200 times its size"));
}

}  // namespace
}  // namespace spillway
