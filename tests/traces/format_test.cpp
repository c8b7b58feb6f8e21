// The JSON that is written, against the Trace Event Format as Perfetto reads it (docs/traces.md).
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "test_paths.hpp"
#include "tests/traces/example_traces.hpp"
#include "traces/perfetto.hpp"

namespace spillway {
namespace {

using nlohmann::json;

json written(const Trace& trace) {
  const TemporaryFolder folder;
  write_trace(trace, folder.file("t.json"));
  return json::parse(file_text(folder.file("t.json")));
}

std::set<std::string> keys(const json& object) {
  std::set<std::string> result;
  for (const auto& [key, value] : object.items()) result.insert(key);
  return result;
}

TEST_CASE("one span, key by key") {
  Trace trace = empty_trace();
  Span span;
  span.task = 17;
  span.lane = 1;
  span.kind = 2;
  span.phase = 1;
  span.segment = 2;
  span.step = 9;
  span.layer = 3;
  span.micro_batch = 1;
  span.start_ns = 12'345;
  span.end_ns = 12'345 + 1'000'001;
  span.bytes = 4096;
  span.flops = 1.5e12;
  span.params = 7;
  trace.spans = {span};
  trace.memory = {{2'001, 1, 123}};
  trace.set_metadata("policy", R"("zero-infinity")");

  const TemporaryFolder folder;
  write_trace(trace, folder.file("t.json"));
  const std::string text = file_text(folder.file("t.json"));
  // The digits themselves, since a JSON number may be read as a double.
  CHECK(text.find("\"ts\":12.345,\"dur\":1000.001,") != std::string::npos);
  CHECK(text.find("\"ts\":2.001,") != std::string::npos);

  const json file = json::parse(text);
  CHECK(file["displayTimeUnit"] == "ns");
  CHECK(file["otherData"]["policy"] == "zero-infinity");
  CHECK(file["spillway"]["format"] == "spillway-trace");
  CHECK(file["spillway"]["lanes"] == json(trace.lanes));
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "X") {
      CHECK(event["name"] == "h2d L3 m1");
      CHECK(event["cat"] == "h2d");
      CHECK(event["pid"] == 1);
      CHECK(event["tid"] == 2);
      CHECK(event["args"] ==
            json::parse(R"({"task": 17, "kind": "h2d", "segment": 2, "step": 9, "phase": "backward",
        "layer": 3, "micro_batch": 1, "bytes": 4096, "flops": 1.5e12, "params": 7})"));
    }
    if (event["ph"] == "C") {
      CHECK(event["name"] == "memory host");
      CHECK(event["args"] == json{{"bytes", 123}});
    }
  }
}

TEST_CASE("the example in docs/traces.md is what the format is") {
  const std::string document = file_text(SPILLWAY_SOURCE_DIR "/docs/traces.md");
  const std::string opening = "```json\n";
  const std::size_t begin = document.find(opening) + opening.size();
  const std::size_t end = document.find("```", begin);
  REQUIRE(end != std::string::npos);
  const TemporaryFolder folder;
  write_text(folder.file("example.json"), document.substr(begin, end - begin));
  const Trace trace = read_trace(folder.file("example.json"));
  CHECK(written(trace) == json::parse(document.substr(begin, end - begin)));
  CHECK(trace.spans.at(0).end_ns == 12'345 + 1'000'001);
}

TEST_CASE("every event has the keys that its type requires") {
  const std::map<std::string, std::set<std::string>> required = {
      {"M", {"ph", "pid", "tid", "name", "args"}},
      {"X", {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"}},
      {"C", {"ph", "pid", "tid", "name", "ts", "args"}}};
  const Trace trace = random_trace(11, 300);
  const json file = written(trace);
  std::map<std::string, std::size_t> count;
  for (const json& event : file["traceEvents"]) {
    const std::string type = event["ph"];
    INFO(event.dump());
    REQUIRE(required.count(type) == 1);
    CHECK(keys(event) == required.at(type));
    CHECK(event["pid"].is_number_integer());
    CHECK(event["tid"].is_number_integer());
    CHECK(event["name"].is_string());
    CHECK(event["args"].is_object());
    if (type != "M") CHECK(event["ts"].is_number());
    if (type == "X") CHECK(event["dur"].get<double>() >= 0);
    // A counter's arguments are its series, and must be numbers.
    if (type == "C") {
      for (const json& series : event["args"]) CHECK(series.is_number());
    }
    ++count[type];
  }
  CHECK(count["X"] == trace.spans.size());
  CHECK(count["C"] == trace.memory.size());
}

TEST_CASE("every lane is a named track in the order of the lanes") {
  const Trace trace = empty_trace();
  const json file = written(trace);
  std::map<int, std::string> names;
  std::map<int, int> order;
  std::size_t processes = 0;
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "process_name") ++processes;
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
    if (event["name"] == "thread_sort_index") order[event["tid"]] = event["args"]["sort_index"];
  }
  CHECK(processes == 1);
  CHECK(names == std::map<int, std::string>{{1, "gpu.compute"}, {2, "pcie.h2d"}, {3, "pcie.d2h"}});
  CHECK(order == std::map<int, int>{{1, 0}, {2, 1}, {3, 2}});
}

// Perfetto drops a complete event that partly overlaps another on its track. Spans that touch end
// to start must therefore touch after conversion: ts + dur of one = ts of the next, in whole
// nanoseconds.
TEST_CASE("no two events of a track overlap") {
  Trace trace = random_trace(12, 2000);
  std::map<std::uint16_t, std::int64_t> lane_ns;
  for (Span& span : trace.spans) {  // closed up, without any gap
    const std::int64_t duration_ns = span.end_ns - span.start_ns;
    span.start_ns = lane_ns[span.lane];
    span.end_ns = lane_ns[span.lane] = span.start_ns + duration_ns;
  }
  const json file = written(trace);
  std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> tracks;
  const auto ns = [](const json& microseconds) {
    return std::llround(microseconds.get<double>() * 1000);
  };
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "X")
      tracks[event["tid"]].emplace_back(ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]));
  }
  CHECK(tracks.size() == trace.lanes.size());
  for (auto& [track, spans] : tracks) {
    for (std::size_t i = 1; i < spans.size(); ++i) CHECK(spans[i].first == spans[i - 1].second);
  }
}

}  // namespace
}  // namespace spillway
