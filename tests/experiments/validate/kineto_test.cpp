// Traces of PyTorch as lanes: mapping files, nested and overlapping events, a recorded training.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "experiments/plan/problem_request.hpp"
#include "experiments/validate/kineto_import.hpp"
#include "experiments/validate/kineto_mapping.hpp"
#include "experiments/validate/time_pieces.hpp"
#include "experiments/validate/validate_kineto.hpp"
#include "test_paths.hpp"
#include "tests/policies/input_error.hpp"
#include "traces/file_source.hpp"

namespace spillway {
namespace {

const std::string recorded = SPILLWAY_SOURCE_DIR "/tests/reference/kineto/";

// A trace event by event; times in microseconds.
class Recording {
 public:
  Recording& step(int start, int end) { return add("step", "user_annotation", 0, start, end); }
  Recording& add(const std::string& name, const std::string& category, std::uint32_t thread,
                 int start, int end,
                 const std::vector<std::pair<std::string, std::string>>& args = {}) {
    while (trace.threads.size() <= thread)
      trace.threads.push_back({"1", std::to_string(trace.threads.size()), ""});
    KinetoEvent event{number(name), number(category), thread, start * 1000, end * 1000, {}};
    for (const auto& [key, value] : args) event.args.emplace_back(number(key), number(value));
    trace.events.push_back(event);
    return *this;
  }
  KinetoImport import(const std::string& rules, int left_out = 0) const {
    const std::string steps =
        "[steps]\nname = 'step'\nleave_out = " + std::to_string(left_out) + "\n";
    return import_kineto(trace, parse_kineto_mapping(steps + rules, "m.toml"), "t.json");
  }

  KinetoTrace trace;

 private:
  std::uint32_t number(const std::string& text) {
    const auto [at, fresh] = numbers_.emplace(text, static_cast<std::uint32_t>(trace.texts.size()));
    if (fresh) trace.texts.push_back(text);
    return at->second;
  }
  std::map<std::string, std::uint32_t> numbers_;
};

const std::string backward =
    "[[rule]]\nlane = \"gpu.compute\"\nkind = \"backward\"\nname = 'backward'\n";
const std::string forward =
    "[[rule]]\nlane = \"gpu.compute\"\nkind = \"forward\"\nname = 'aten::.*'\n";
const std::string copies = "[[rule]]\nlane = \"pcie.h2d\"\nkind = \"h2d\"\nname = '.*copy.*'\n";

std::map<std::string, double> microseconds(const std::vector<LaneTime>& times) {
  std::map<std::string, double> all;
  for (const LaneTime& time : times) all[time.name] = time.seconds * 1e6;
  return all;
}

void check_times(const std::vector<LaneTime>& times,
                 const std::map<std::string, double>& expected_microseconds) {
  const auto found = microseconds(times);
  CHECK(found.size() == expected_microseconds.size());
  for (const auto& [name, value] : expected_microseconds) {
    INFO(name);
    REQUIRE(found.count(name) == 1);
    CHECK(found.at(name) == Approx(value));
  }
}

TEST_CASE("at each moment the foremost of the open intervals holds") {
  // 0 1 2 3 4 5 6 7 8 9 10      rank 2: 0..10, rank 1: 2..4 and 8..12
  const std::vector<Interval> pieces = foremost({{0, 10, 2, 7}, {2, 4, 1, 8}, {8, 12, 1, 8}});
  REQUIRE(pieces.size() == 4);
  const auto is = [&](std::size_t i, std::int64_t start, std::int64_t end, std::size_t id) {
    INFO("piece " << i);
    CHECK((pieces[i].start == start && pieces[i].end == end && pieces[i].id == id));
  };
  is(0, 0, 2, 7);
  is(1, 2, 4, 8);
  is(2, 4, 8, 7);
  is(3, 8, 12, 8);
  CHECK(foremost({}).empty());
  // A pause between them stays one; two that touch are one piece.
  CHECK(foremost({{-3, -1, 0, 1}, {5, 6, 0, 1}, {6, 9, 0, 1}}).size() == 2);
}

TEST_CASE("an event takes its time with what it calls, but for what an earlier rule maps") {
  // backward 10..60 calls aten::mm 20..30; aten::add 70..80 is the thread's own. A copy lies in
  // each.
  const KinetoImport import = Recording()
                                  .step(0, 100)
                                  .add("backward", "cpu_op", 0, 10, 60)
                                  .add("aten::mm", "cpu_op", 0, 20, 30)
                                  .add("aten::copy_", "cpu_op", 0, 40, 45)
                                  .add("aten::add", "cpu_op", 0, 70, 80)
                                  .add("aten::copy_", "cpu_op", 0, 75, 77)
                                  .import(copies + backward + forward);
  check_times(import.kinds, {{"backward", 45}, {"forward", 8}, {"h2d", 7}});
  check_times(import.lanes, {{"gpu.compute", 53}, {"pcie.h2d", 7}});
  CHECK(import.unmapped_seconds == Approx(0).margin(1e-12));
  CHECK(import.idle_seconds * 1e6 == Approx(40));
  CHECK(import.events_of_rules == std::vector<std::size_t>{2, 1, 2});
}

TEST_CASE("threads on one lane at once count once, by the first rule") {
  const KinetoImport import = Recording()
                                  .step(0, 100)
                                  .add("aten::mm", "cpu_op", 0, 10, 50)
                                  .add("backward", "cpu_op", 1, 40, 90)
                                  .import(backward + forward);
  check_times(import.kinds, {{"forward", 30}, {"backward", 50}});
  check_times(import.lanes, {{"gpu.compute", 80}});
}

TEST_CASE("events are cut at the ends of steps, and the times are medians over those that count") {
  Recording recording;
  recording.step(0, 100).step(100, 300).step(300, 400).step(450, 560);
  recording.add("aten::mm", "cpu_op", 0, 50, 150);   // 50 of step 0, 50 of step 1
  recording.add("aten::mm", "cpu_op", 0, 390, 460);  // 10 of step 2, 10 of step 3
  const KinetoImport import = recording.import(forward, 1);
  CHECK(import.left_out == 1);
  REQUIRE(import.step_seconds.size() == 3);
  CHECK(import.step_seconds[2] * 1e6 == Approx(110));
  check_times(import.kinds, {{"forward", 10}});  // of 50, 10, 10
  REQUIRE(import.trace.spans.size() == 3);
  CHECK(import.trace.spans[0].start_ns == 0);
  CHECK(import.trace.spans[1].step == 1);
}

TEST_CASE("what no rule takes is reported by the time it takes itself") {
  const KinetoImport import =
      Recording()
          .step(0, 100)
          .add("python", "python_function", 0, 0, 100)
          .add("PyTorch Profiler (0)", "Trace", 2, 0, 100)
          .add("aten::mm", "cpu_op", 0, 10, 20)
          .add("data loader", "user_annotation", 0, 30, 70)
          .add("read", "io", 0, 40, 50)
          .add("read", "io", 1, 10, 25)
          .import(forward + "[[rule]]\nignore = true\ncategory = 'python.*'\n");
  REQUIRE(import.unmapped.size() == 2);
  CHECK(import.unmapped[0].name == "data loader");
  CHECK(import.unmapped[0].seconds * 1e6 == Approx(30));
  CHECK(import.unmapped[1].name == "read");
  CHECK(import.unmapped[1].count == 2);
  CHECK(import.unmapped[1].seconds * 1e6 == Approx(25));
  CHECK(import.unmapped_seconds * 1e6 == Approx(45));  // 20..25 and 30..70
  CHECK(import.idle_seconds * 1e6 == Approx(45));
}

TEST_CASE("threads, streams and arguments are conditions, too") {
  const KinetoImport import =
      Recording()
          .step(0, 100)
          .add("gemm", "kernel", 1, 0, 10, {{"stream", "7"}})
          .add("gemm", "kernel", 2, 0, 20, {{"stream", "20"}})
          .add("gemm", "kernel", 3, 0, 40, {{"stream", "21"}, {"device", "1"}})
          .import(
              "[[rule]]\nlane = \"gpu.compute\"\nkind = \"forward\"\nstream = 7\n"
              "[[rule]]\nlane = \"pcie.d2h\"\nkind = \"d2h\"\nargs = { device = '[0-9]' }\n"
              "[[rule]]\nlane = \"pcie.h2d\"\nkind = \"h2d\"\nthread = '2'\n");
  check_times(import.lanes, {{"gpu.compute", 10}, {"pcie.d2h", 40}, {"pcie.h2d", 20}});
}

TEST_CASE("traces without steps, with overlapping ones, or with nothing mapped are refused") {
  const auto refused = [](const Recording& recording, const std::string& message,
                          const std::string& hint, int left_out = 0) {
    check_error([&] { recording.import(forward, left_out); }, message, hint);
  };
  refused(Recording().add("aten::mm", "cpu_op", 0, 0, 1), "t.json: no event is a step: name step",
          "profiler.step()");
  refused(Recording().step(0, 10).step(5, 20), "t.json: two steps overlap: from 0 us and from 5 us",
          "narrow [steps] of m.toml");
  refused(Recording().step(0, 10).add("aten::mm", "cpu_op", 0, 0, 1),
          "t.json: it has 1 step, and the first is left out", "leave_out", 1);
  refused(Recording().step(0, 10).add("mm", "cpu_op", 0, 0, 1),
          "t.json: no event of its steps is mapped", "m.toml");
}

TEST_CASE("mapping files that are wrong are refused with their place") {
  const auto refused = [](const std::string& text, const std::string& message,
                          const std::string& hint) {
    check_error([&] { parse_kineto_mapping(text, "m.toml"); }, message, hint);
  };
  refused("", "m.toml: it holds no rule", "[[rule]]");
  refused("[[rules]]\nlane = 1\n", "m.toml:1:3: unknown key rules", "rule");
  refused("[[rule]]\nlane = \"gpu.compute\"\nkind = \"forward\"\n",
          "m.toml:1:1: a rule without a condition", "name, category");
  refused("[[rule]]\nlane = \"gpu.computer\"\nkind = \"forward\"\nname = 'a'\n",
          "m.toml:2:8: unknown lane gpu.computer", "gpu.compute");
  refused("[[rule]]\nlane = \"gpu.compute\"\nkind = \"foreward\"\nname = 'a'\n",
          "m.toml:3:8: unknown kind foreward", "forward");
  refused("[[rule]]\nkind = \"forward\"\nname = 'a'\n", "m.toml:1:1: lane is missing", "lane");
  refused("[[rule]]\nlane = \"ssd.read\"\nname = 'a'\n", "m.toml:1:1: kind is missing", "kind");
  refused("[[rule]]\nlane = \"ssd.read\"\nignore = true\nname = 'a'\n",
          "m.toml:1:1: a rule that ignores events has neither a lane nor a kind", "take one");
  refused("[[rule]]\nlane = \"ssd.read\"\nkind = \"read\"\nname = 'a(b'\n",
          "m.toml:4:8: name: the expression a(b is wrong at character 4", "backslash");
  refused("[[rule]]\nlane = \"ssd.read\"\nkind = \"read\"\nnmae = 'a'\n",
          "m.toml:4:1: unknown key nmae", "name");
  refused("[steps]\nleave_out = -1\n", "m.toml:2:13: leave_out is not a whole number", "leave_out");
  refused(copies + "[[rule]]\nlane = \"pcie.d2h\"\nkind = [\"h2d\", \"d2h\"]\nname = 'b'\n",
          "m.toml:5:1: kind h2d is in d2h+h2d here and in h2d at m.toml:1:1", "same list");
  CHECK_THROWS_AS(
      Recording()
          .step(0, 10)
          .add(std::string(40, 'a') + "b", "", 0, 0, 1)
          .import("[[rule]]\nlane = \"ssd.read\"\nkind = \"read\"\nname = '(a+a+)+c'\n"),
      InputError);
}

// The recorded training, by a reader of its own: seconds of the events of a name in each step.
struct ByHand {
  ByHand() {
    const auto trace =
        nlohmann::json::parse(trace_format::read_whole_file(recorded + "gpt2-cpu.json.gz", ""));
    std::vector<std::pair<double, double>> steps;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const std::string name = event["name"];
      const double start = event["ts"], end = start + event["dur"].get<double>();
      if (name.starts_with("ProfilerStep#")) steps.emplace_back(start, end);
    }
    std::sort(steps.begin(), steps.end());
    steps.erase(steps.begin());
    seconds.resize(steps.size());
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const std::string name = event["name"], category = event.value("cat", "");
      const double start = event["ts"], duration = event["dur"];
      std::string kind;
      if (name.starts_with("Optimizer.")) kind = "optimizer";
      if (name == "forward" && category == "user_annotation") kind = "embed_forward+forward+head";
      if (name.starts_with("autograd::engine::evaluate_function: ")) kind = "backward";
      if (kind.empty()) continue;
      for (std::size_t s = 0; s < steps.size(); ++s) {
        if (start >= steps[s].first && start < steps[s].second) seconds[s][kind] += duration * 1e-6;
      }
    }
    for (const auto& [start, end] : steps) step_seconds.push_back((end - start) * 1e-6);
  }
  double median(const std::string& kind) const {
    std::vector<double> values;
    for (const auto& step : seconds) values.push_back(step.at(kind));
    return median(values);
  }
  static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    REQUIRE(values.size() % 2 == 1);
    return values[values.size() / 2];
  }
  std::vector<double> step_seconds;
  std::vector<std::map<std::string, double>> seconds;  // by step and kind
};

TEST_CASE("a training of transformers' GPT-2, recorded by PyTorch, against a simulated schedule") {
  const ByHand expected;
  const KinetoMapping mapping = load_kineto_mapping(recorded + "mapping.toml");
  const std::string path = recorded + "gpt2-cpu.json.gz";
  ProblemRequest request;
  request.model = recorded + "model.toml";
  request.machine = "testbed";
  request.workload = {{"batch", "4"}, {"micro_batch", "2"}, {"sequence", "128"}};
  const KinetoValidation validation =
      validate_kineto(evaluate(request.problem(), "resident"),
                      import_kineto(read_kineto(path, mapping.args()), mapping, path));
  CHECK(validation.measured_step_seconds == Approx(ByHand::median(expected.step_seconds)));
  CHECK(validation.error ==
        Approx(validation.predicted_step_seconds / validation.measured_step_seconds - 1));
  std::map<std::string, KinetoQuantity> kinds, lanes;
  for (const KinetoQuantity& kind : validation.kinds) kinds[kind.name] = kind;
  for (const KinetoQuantity& lane : validation.lanes) lanes[lane.name] = lane;
  for (const char* kind : {"optimizer", "backward", "embed_forward+forward+head"}) {
    INFO(kind);
    REQUIRE(kinds.count(kind) == 1);
    CHECK(*kinds[kind].measured_seconds == Approx(expected.median(kind)).epsilon(1e-6));
    CHECK(kinds[kind].predicted_seconds > 0);
  }
  // Of the simulated kinds each is in one row.
  for (const char* kind : {"forward", "head", "embed_forward"}) CHECK(kinds.count(kind) == 0);
  CHECK_FALSE(kinds.at("embed_backward").measured_seconds.has_value());
  const KinetoImport& measured = validation.measured;
  CHECK(lanes.size() == 1);  // policy resident does everything on the GPU
  CHECK(*lanes.at("gpu.compute").measured_seconds <= validation.measured_step_seconds);
  CHECK(measured.step_seconds.size() == 3);
  for (const std::size_t events : measured.events_of_rules) CHECK(events > 0);
  CHECK(measured.unmapped_seconds < 0.2 * validation.measured_step_seconds);
  CHECK(measured.idle_seconds < 0.2 * validation.measured_step_seconds);
  // Spans of a lane follow each other, and hold what the lane is busy for.
  std::map<std::uint16_t, std::int64_t> ends;
  for (const Span& span : measured.trace.spans) {
    CHECK(span.start_ns >= ends[span.lane]);
    ends[span.lane] = span.end_ns;
  }
}

}  // namespace
}  // namespace spillway
