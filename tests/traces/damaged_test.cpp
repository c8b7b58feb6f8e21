// Files that are not whole traces are refused, with the place; files that cannot be written leave
// nothing.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <functional>

#include "base/errors.hpp"
#include "tests/traces/example_traces.hpp"
#include "traces/perfetto.hpp"

namespace spillway {
namespace {

using Catch::Matchers::Contains;

// The message of the InputError that reading `text` throws; empty where it does not throw.
std::string refusal(const std::string& text, const std::string& name = "t.json") {
  const TemporaryFolder folder;
  write_text(folder.file(name), text);
  try {
    read_trace(folder.file(name));
  } catch (const InputError& error) {
    CHECK_THAT(error.what(), Contains(folder.file(name)));
    CHECK_FALSE(error.hint().empty());
    return error.what();
  }
  return "";
}

std::string text_of(const Trace& trace, const std::string& name = "t.json") {
  const TemporaryFolder folder;
  write_trace(trace, folder.file(name));
  return file_text(folder.file(name));
}

// `text` with the first `from` replaced.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("a trace cut off anywhere is refused, with the line") {
  const std::string text = text_of(random_trace(21, 20));
  REQUIRE(refusal(text).empty());
  // The last two bytes are the closing brace and a line end that nothing depends on.
  for (std::size_t size = 0; size + 2 < text.size(); size += 7) {
    INFO("after " << size << " of " << text.size() << " bytes");
    CHECK_FALSE(refusal(text.substr(0, size)).empty());
  }
  CHECK_THAT(refusal(text.substr(0, text.find("\"ts\":") + 5)),
             Contains("ends in the middle of the trace"));
  CHECK_THAT(refusal(""), Contains("empty"));
}

TEST_CASE("a compressed trace cut off anywhere, or with a flipped bit, is refused") {
  const std::string text = text_of(random_trace(22, 20), "t.json.gz");
  REQUIRE(refusal(text, "t.json.gz").empty());
  for (std::size_t size = 1; size < text.size(); size += 11) {
    INFO("after " << size << " of " << text.size() << " bytes");
    CHECK_FALSE(refusal(text.substr(0, size), "t.json.gz").empty());
  }
  std::string flipped = text;
  flipped[text.size() / 2] = static_cast<char>(flipped[text.size() / 2] ^ 4);
  CHECK_FALSE(refusal(flipped, "t.json.gz").empty());
}

TEST_CASE("the line of a damaged event is named") {
  Trace trace = random_trace(23, 5);
  trace.memory.clear();
  for (Span& span : trace.spans) span.layer = 40 + static_cast<std::int32_t>(span.task);
  const std::string text = text_of(trace);
  const std::string key = "\"layer\":42";  // the third span
  const auto line =
      1 +
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find(key)), '\n');
  const std::string place = "t.json:" + std::to_string(line) + ": ";

  CHECK_THAT(refusal(with(text, key, "\"layer\":4x2")), Contains(place + "not valid JSON at byte"));
  CHECK_THAT(refusal(with(text, key, "\"layer\":\"x\"")),
             Contains(place + "\"layer\" must be a whole number"));
  CHECK_THAT(refusal(with(text, key, "\"layer\":2147483648")),
             Contains(place + "\"layer\" must be a whole number"));
  CHECK_THAT(refusal(with(text, key, "\"layer\":1.5")),
             Contains(place + "\"layer\" must be a whole number"));
  CHECK_THAT(refusal(with(text, key, "\"Layer\":1")),
             Contains(place + "the event lacks \"layer\""));
}

TEST_CASE("events that contradict the header are refused") {
  Trace trace = empty_trace();
  trace.spans.resize(1);
  trace.spans[0].end_ns = 1000;
  trace.memory = {{0, 0, 1}};
  const std::string text = text_of(trace);
  REQUIRE(refusal(text).empty());
  CHECK_THAT(refusal(with(text, "\"kind\":\"forward\"", "\"kind\":\"fly\"")),
             Contains("\"fly\" is not among the names"));
  CHECK_THAT(refusal(with(text, "\"phase\":\"forward\"", "\"phase\":1")),
             Contains("\"phase\" must be a string"));
  CHECK_THAT(refusal(with(text, "memory gpu", "memory tape")),
             Contains("\"tape\" is not among the names"));
  CHECK_THAT(
      refusal(with(text, "\"tid\":1,\"name\":\"forward\"", "\"tid\":9,\"name\":\"forward\"")),
      Contains("no lane has tid 9"));
  CHECK_THAT(refusal(with(text, "\"dur\":1.000", "\"dur\":-1.000")),
             Contains("\"dur\" is out of range"));
  CHECK_THAT(refusal(with(text, "\"dur\":1.000", "\"dur\":1e300")),
             Contains("\"dur\" must be a time"));
  CHECK_THAT(refusal(with(text, "\"spans\":1", "\"spans\":2")),
             Contains("2 spans and 1 memory samples were announced"));
  CHECK_THAT(refusal(with(text, "\"version\":1", "\"version\":2")),
             Contains("version 2; this program reads version 1"));
}

TEST_CASE("other programs' files are refused as such") {
  const std::string foreign = "not a trace of Spillway";
  CHECK_THAT(refusal("[]"), Contains(foreign));
  CHECK_THAT(refusal("{}"), Contains(foreign));
  CHECK_THAT(refusal("7"), Contains(foreign));
  CHECK_THAT(refusal(R"({"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":1,"pid":1,"tid":1}]})"),
             Contains(foreign));
  CHECK_THAT(refusal(R"([{"ph":"X","name":"a","ts":1,"dur":1,"pid":1,"tid":1}])"),
             Contains(foreign));
  CHECK_THAT(refusal(R"({"spillway":{"format":"another"},"traceEvents":[]})"), Contains(foreign));
  CHECK_THAT(refusal("layers = 4\n"), Contains("not a trace of Spillway"));
}

TEST_CASE("a missing file is the user's input, a folder the machine's answer") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(read_trace(folder.file("none.json")), InputError);
  CHECK_THROWS_AS(read_trace(folder.file(".")), InputError);
}

TEST_CASE("a trace that cannot be created says why") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(write_trace(empty_trace(), folder.file("missing/t.json")),
                    Contains("missing: there is no such directory"));
  CHECK_THROWS_AS(write_trace(empty_trace(), folder.file("missing/t.json")), InputError);
}

// Runs `work` in a process that may not write a file longer than `bytes` (EFBIG, as ENOSPC would).
void with_file_size_limit(rlim_t bytes, const std::function<void()>& work) {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limited = before;
  limited.rlim_cur = bytes;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limited) == 0);
  work();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

TEST_CASE("a trace that cannot be finished leaves what was there, and nothing else") {
  const TemporaryFolder folder;
  const std::string name = GENERATE("t.json", "t.json.gz");
  write_trace(random_trace(24, 3), folder.file(name));
  const std::string before = file_text(folder.file(name));
  const Trace large = random_trace(25, 20'000);
  bool refused = false;
  with_file_size_limit(rlim_t{64} * 1024, [&] {
    try {
      write_trace(large, folder.file(name));
    } catch (const MachineError& error) {
      refused = std::string(error.what()).find("File too large") != std::string::npos;
    }
  });
  CHECK(refused);
  CHECK(file_text(folder.file(name)) == before);
  CHECK(folder.files() == 1);
}

TEST_CASE("nothing but a trace is replaced by one, and no link or FIFO is opened") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& name) -> std::string {
    try {
      write_trace(empty_trace(), folder.file(name));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  write_text(folder.file("notes.json"), "my notes");
  CHECK_THAT(refusal("notes.json"), Catch::Contains("is not a trace of Spillway's"));
  CHECK(file_text(folder.file("notes.json")) == "my notes");
  REQUIRE(::mkfifo(folder.file("pipe").c_str(), 0600) == 0);
  CHECK_THAT(refusal("pipe"), Catch::Contains("is a FIFO"));
  CHECK(std::filesystem::is_fifo(folder.file("pipe")));
  CHECK_THROWS_AS(read_trace(folder.file("pipe")),
                  InputError);  // and does not wait for its other end
  std::filesystem::create_symlink("notes.json", folder.file("link.json"));
  CHECK_THAT(refusal("link.json"), Catch::Contains("is a symbolic link"));
  CHECK(file_text(folder.file("notes.json")) == "my notes");
  // A trace, compressed or not, makes room for the next one.
  for (const char* name : {"t.json", "t.json.gz"}) {
    write_trace(random_trace(24, 3), folder.file(name));
    CHECK(refusal(name) == "");
    CHECK(read_trace(folder.file(name)).lanes == empty_trace().lanes);
  }
  // Nothing unfinished stays.
  CHECK(folder.files() == 5);
}

}  // namespace
}  // namespace spillway
