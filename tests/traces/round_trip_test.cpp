// What is written is read back: every nanosecond, every index, every value of the metadata.
#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>

#include "tests/traces/example_traces.hpp"
#include "traces/perfetto.hpp"

namespace spillway {
namespace {

bool equal(const Span& a, const Span& b) {
  return a.task == b.task && a.lane == b.lane && a.kind == b.kind && a.phase == b.phase &&
         a.segment == b.segment && a.step == b.step && a.layer == b.layer &&
         a.micro_batch == b.micro_batch && a.start_ns == b.start_ns && a.end_ns == b.end_ns &&
         a.bytes == b.bytes && a.flops == b.flops && a.params == b.params;
}

void require_equal(const Trace& a, const Trace& b) {
  REQUIRE(a.lanes == b.lanes);
  REQUIRE(a.kinds == b.kinds);
  REQUIRE(a.phases == b.phases);
  REQUIRE(a.tiers == b.tiers);
  REQUIRE(a.metadata == b.metadata);
  REQUIRE(a.spans.size() == b.spans.size());
  for (std::size_t i = 0; i < a.spans.size(); ++i) {
    INFO("span " << i);
    REQUIRE(equal(a.spans[i], b.spans[i]));
  }
  REQUIRE(a.memory.size() == b.memory.size());
  for (std::size_t i = 0; i < a.memory.size(); ++i) {
    INFO("sample " << i);
    REQUIRE(a.memory[i].time_ns == b.memory[i].time_ns);
    REQUIRE(a.memory[i].tier == b.memory[i].tier);
    REQUIRE(a.memory[i].bytes == b.memory[i].bytes);
  }
}

TEST_CASE("a trace read back equals the trace written") {
  const TemporaryFolder folder;
  const std::string name = GENERATE("trace.json", "trace.json.gz");
  const unsigned seed = GENERATE(1u, 2u, 3u);
  INFO(name << ", seed " << seed);
  Trace trace = random_trace(seed, 500);
  trace.set_metadata("policy", R"("greedysnake:alpha=0.2")");
  trace.set_metadata(
      "workload",
      R"({"batch": 8, "sequence": 1024, "rates": [1.5, 1e300, -3, true, null, "a\n\"b\""],
                                     "empty": {}, "none": [], "nested": {"a": {"b": [[1], [2, 3]]}}})");
  trace.set_metadata("seed", "18446744073709551615");
  write_trace(trace, folder.file(name));
  require_equal(trace, read_trace(folder.file(name)));
  CHECK(folder.files() == 1);  // no temporary file is left
}

TEST_CASE("an empty trace and empty metadata survive") {
  const TemporaryFolder folder;
  write_trace(Trace{}, folder.file("t.json"));
  require_equal(Trace{}, read_trace(folder.file("t.json")));
}

// As doubles, microseconds have 53 bits: beyond 2^53 us * 1000 the last nanoseconds would be lost.
TEST_CASE("times keep their last nanosecond after years") {
  const TemporaryFolder folder;
  Trace trace = empty_trace();
  const std::int64_t century_ns = std::int64_t{100} * 365 * 24 * 3600 * 1'000'000'000;
  for (const std::int64_t start_ns :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{999}, std::int64_t{1000}, std::int64_t{1001},
        std::int64_t{12345}, std::int64_t{-1}, std::int64_t{-1001}, (std::int64_t{1} << 53) + 1,
        century_ns + 7, century_ns + 123}) {
    Span span;
    span.start_ns = start_ns;
    span.end_ns = start_ns + 9;
    trace.spans.push_back(span);
    trace.memory.push_back({start_ns, 1, std::numeric_limits<std::uint64_t>::max()});
  }
  write_trace(trace, folder.file("t.json"));
  require_equal(trace, read_trace(folder.file("t.json")));
}

TEST_CASE("names with quotes, controls and other scripts survive") {
  const TemporaryFolder folder;
  Trace trace = empty_trace();
  trace.kinds = {"\"quoted\"", "tab\there", "層\\"};
  trace.spans.resize(3);
  for (std::uint16_t i = 0; i < 3; ++i) trace.spans[i].kind = i;
  write_trace(trace, folder.file("t.json"));
  require_equal(trace, read_trace(folder.file("t.json")));
}

TEST_CASE("a trace that another tool laid out anew reads the same") {
  const TemporaryFolder folder;
  Trace trace = random_trace(4, 50);
  trace.set_metadata("seed", "7");
  write_trace(trace, folder.file("t.json"));
  std::string text = file_text(folder.file("t.json"));
  // Spaces between tokens; no name in this trace has a comma or a colon in it.
  for (const std::string separator : {",", ":"}) {
    for (std::size_t at = 0; (at = text.find(separator, at)) != std::string::npos; at += 3) {
      text.replace(at, 1, " " + separator + "\n");
    }
  }
  write_text(folder.file("wide.json"), text);
  require_equal(trace, read_trace(folder.file("wide.json")));
}

TEST_CASE("100,000 spans are written and read in pieces") {
  const TemporaryFolder folder;
  const Trace trace = random_trace(5, 100'000);
  write_trace(trace, folder.file("t.json.gz"));
  const Trace back = read_trace(folder.file("t.json.gz"));
  REQUIRE(back.spans.size() == trace.spans.size());
  for (std::size_t i = 0; i < trace.spans.size(); i += 997)
    REQUIRE(equal(trace.spans[i], back.spans[i]));
  REQUIRE(equal(trace.spans.back(), back.spans.back()));
}

TEST_CASE("metadata: the last value set is the one found, in compact form") {
  Trace trace;
  CHECK(trace.find_metadata("model") == nullptr);
  trace.set_metadata("model", R"( { "name" : "gpt-tiny" } )");
  trace.set_metadata("seed", "1");
  trace.set_metadata("model", R"("gpt2-124m")");
  REQUIRE(trace.find_metadata("model") != nullptr);
  CHECK(*trace.find_metadata("model") == R"("gpt2-124m")");
  trace.set_metadata("model", R"( { "b" : 1, "a" : [ 1, 2 ] } )");
  CHECK(*trace.find_metadata("model") == R"({"b":1,"a":[1,2]})");
  CHECK(trace.metadata.size() == 2);
}

}  // namespace
}  // namespace spillway
