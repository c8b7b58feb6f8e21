// Traces of PyTorch: what is read of them, and what is refused, with its line.
#include <catch2/catch.hpp>
#include <fstream>

#include "base/errors.hpp"
#include "tests/temporary_folder.hpp"
#include "traces/kineto.hpp"

namespace spillway {
namespace {

KinetoTrace read(const std::string& text, const std::set<std::string>& args = {}) {
  const test::TemporaryFolder folder;
  const auto path = folder / "trace.json";
  std::ofstream(path) << text;
  return read_kineto(path.string(), args);
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const InputError& error) {
    const std::string what = error.what();
    return what.substr(what.find("trace.json"));
  }
  return "";
}

const std::string event =
    R"({"ph":"X","cat":"cpu_op","name":"aten::mm","pid":7,"tid":9,"ts":10.5,"dur":2.25})";

TEST_CASE("complete events have a name, a category, a thread and times to the nanosecond") {
  const KinetoTrace trace = read(R"x({"schemaVersion":1,"traceName":"x","traceEvents":[
{"ph":"M","name":"thread_name","pid":7,"tid":9,"args":{"name":"thread 9 (python)"}},
{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":4910585001103.539,"dur":0.001,"args":{"stream":7,"grid":[1,2],"device":0}},
{"ph":"X","name":"no category","pid":"Spans","tid":"PyTorch Profiler","ts":5,"dur":1},
{"ph":"s","id":1,"name":"fwdbwd","pid":7,"tid":9,"ts":1},
)x" + event + "]}",
                                 {"stream"});
  REQUIRE(trace.events.size() == 3);
  CHECK(trace.skipped_events == 2);
  const KinetoEvent& kernel = trace.events[0];
  CHECK(trace.texts[kernel.name] == "gemm");
  CHECK(trace.texts[kernel.category] == "kernel");
  CHECK(kernel.start_ns == 4910585001103539);
  CHECK(kernel.end_ns == 4910585001103540);
  REQUIRE(kernel.args.size() == 1);
  CHECK(trace.texts[kernel.args[0].first] == "stream");
  CHECK(trace.texts[kernel.args[0].second] == "7");
  CHECK(trace.texts[trace.events[1].category].empty());
  CHECK(trace.threads[trace.events[1].thread].id == "PyTorch Profiler");
  CHECK(trace.threads[trace.events[2].thread].name == "thread 9 (python)");
  CHECK(trace.events[2].end_ns - trace.events[2].start_ns == 2250);
}

TEST_CASE("a list of events alone is a trace, too") {
  CHECK(read("[" + event + "," + event + "]").events.size() == 2);
}

TEST_CASE("a trace that is cut off, damaged or of another kind is refused with its line") {
  CHECK(refusal("") == "trace.json:1: the file is empty");
  CHECK(refusal("{\"traceEvents\":[\n" + event + ",\n") ==
        "trace.json:2: the file ends in the middle of the trace, after 99 bytes");
  CHECK_THAT(refusal("{\"traceEvents\":[\n" + event + ",\n{\"ph\" \"X\"}]}"),
             Catch::StartsWith("trace.json:3: not valid JSON at byte "));
  CHECK(refusal("{\"traceEvents\":[\n7]}") == "trace.json:2: an event must be an object");
  CHECK(refusal("{\"traceEvents\":[]}") == "trace.json: holds no complete events (\"ph\": \"X\")");
  CHECK(refusal("3") == "trace.json:1: not a trace: it holds one value");
  const auto without = [&](const std::string& key, const std::string& value) {
    std::string text = event;
    const std::string pair = ",\"" + key + "\":" + value;
    REQUIRE(text.find(pair) != std::string::npos);
    return refusal("[\n\n" + text.erase(text.find(pair), pair.size()) + "]");
  };
  CHECK(without("name", "\"aten::mm\"") == "trace.json:3: the event lacks \"name\"");
  CHECK(without("ts", "10.5") == "trace.json:3: the event lacks \"ts\"");
  CHECK(without("dur", "2.25") == "trace.json:3: the event lacks \"dur\"");
  CHECK(without("tid", "9") == "trace.json:3: the event lacks \"tid\"");
  CHECK(refusal(R"([{"ph":"X","name":"a","tid":1,"ts":"soon","dur":1}])") ==
        "trace.json:1: \"ts\" must be a time in microseconds");
  CHECK(refusal(R"([{"ph":"X","name":"a","tid":1,"ts":1,"dur":-1}])") ==
        "trace.json:1: \"dur\" is out of range");
  CHECK(refusal(R"([{"ph":"X","name":"a","tid":1,"ts":8e15,"dur":1}])") ==
        "trace.json:1: \"ts\" is out of range");
  CHECK_THAT(refusal("[{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}]"),
             Catch::Contains("nested more than 100 deep"));
}

}  // namespace
}  // namespace spillway
