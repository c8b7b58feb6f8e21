// Pages about traces: what they say is what the simulator and the run say.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/report/report.hpp"
#include "policies/common/policy.hpp"
#include "policies/common/run_record.hpp"
#include "sim/to_trace.hpp"
#include "tests/experiments/report/page_reader.hpp"
#include "tests/temporary_folder.hpp"
#include "traces/perfetto.hpp"

namespace spillway {
namespace {

Schedule tiny_schedule(const std::string& policy) {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = load_machine("testbed");
  problem.workload = {8, 2, 64, Precision::fp32, GradientWidth::automatic};
  return build_schedule(problem, policy, 5);
}

Trace trace_of(const Schedule& schedule, const std::string& source) {
  Trace trace = to_trace(schedule, simulate(schedule));
  trace.metadata = make_trace(schedule, source).metadata;
  return trace;
}

// As a training records it: two runs of the schedule, the machine `slower` than it is described, no
// memory samples.
Trace recorded_trace(const Schedule& schedule, std::int64_t slower) {
  Trace trace = trace_of(schedule, "executor");
  trace.memory.clear();
  for (Span& span : trace.spans) {
    span.start_ns *= slower;
    span.end_ns *= slower;
  }
  const std::size_t count = trace.spans.size();
  const std::int64_t later = 2 * trace.spans.back().end_ns;
  for (std::size_t i = 0; i < count; ++i) {
    Span again = trace.spans[i];
    again.segment = 1;
    again.step += schedule.steps();
    again.start_ns += later;
    again.end_ns += later;
    trace.spans.push_back(again);
  }
  return trace;
}

Report report_of(const test::TemporaryFolder& folder, const Trace& trace,
                 const std::string& name = "trace.json.gz") {
  const auto path = folder.path() / name;
  write_trace(trace, path.string());
  return make_report({{path}, {}, {}});
}

TEST_CASE("the page of a simulated trace says what the simulator says") {
  const test::TemporaryFolder folder;
  const Schedule schedule = tiny_schedule("zero-infinity");
  const SimulationResult result = simulate(schedule);
  const Report report = report_of(folder, trace_of(schedule, "simulator"));
  CHECK(report.kind == "traces");
  const auto& one = report.summary.at("traces").at(0);
  CHECK(one.at("policy") == "zero-infinity");
  CHECK(one.at("step_seconds").get<double>() == Approx(result.step_seconds));
  CHECK(one.at("tokens_per_second").get<double>() == Approx(result.tokens_per_second));
  CHECK(one.at("bound_seconds").get<double>() == Approx(result.bound_seconds));
  CHECK(one.at("notes").empty());
  const StallReport stalls = explain(schedule, result).stalls;
  CHECK(one.at("gpu_busy_fraction").get<double>() ==
        Approx(static_cast<double>(stalls.busy_ns) /
               static_cast<double>(stalls.busy_ns + stalls.idle_ns)));
  for (const char* section : {"timeline", "stalls", "path", "work", "memory", "assumptions"}) {
    INFO(section);
    CHECK(report.page.find("<section id=\"" + std::string(section) + "\"") != std::string::npos);
  }
  // It is itself the prediction.
  CHECK(report.page.find("<section id=\"prediction\"") == std::string::npos);
  CHECK_THAT(report.page, Catch::Contains(to_string(stalls.stalls.front().running)));
}

TEST_CASE("a recorded trace is held against its prediction, and has memory over time") {
  const test::TemporaryFolder folder;
  const Schedule schedule = tiny_schedule("greedysnake");
  const Report report = report_of(folder, recorded_trace(schedule, 2));
  const auto& one = report.summary.at("traces").at(0);
  CHECK(one.at("error").get<double>() == Approx(-0.5));
  CHECK(one.at("measured_step_seconds").get<double>() ==
        Approx(2 * one.at("predicted_step_seconds").get<double>()));
  CHECK_THAT(report.page, Catch::Contains("<section id=\"prediction\"") &&
                              Catch::Contains("As measured") && Catch::Contains("As predicted"));
  // Of memory what the plan takes; in use at once is what the simulated trace has, too.
  std::uint64_t most = 0;
  for (const MemorySample& sample : trace_of(schedule, "simulator").memory) {
    if (sample.tier == static_cast<int>(Tier::gpu)) most = std::max(most, sample.bytes);
  }
  CHECK(one.at("gpu_peak_bytes") == schedule.use(Tier::gpu).peak_bytes);
  CHECK_THAT(report.page,
             Catch::Contains(format_bytes(static_cast<double>(most)) + " in use at once"));
  const auto timelines = nlohmann::json::parse(test::blob_of(report.page, "timelines"));
  REQUIRE(timelines.size() == 2);
  CHECK(timelines[0].at("title") == "trace.json.gz: measured");
  CHECK(timelines[1].at("title") == "trace.json.gz: predicted");
  CHECK(timelines[0].at("tasks") == 2 * schedule.tasks().size());
  CHECK(timelines[0].at("path_segment") == 1);  // the last whole run of the schedule
  CHECK(timelines[0].at("dependencies") == timelines[1].at("dependencies"));  // once in the page
}

TEST_CASE("the tasks of a timeline are those of the trace, to the nanosecond") {
  const test::TemporaryFolder folder;
  const Schedule schedule = tiny_schedule("fuyou");
  const Trace trace = trace_of(schedule, "simulator");
  const Report report = report_of(folder, trace);
  const auto about = nlohmann::json::parse(test::blob_of(report.page, "timelines")).at(0);
  test::NumberReader reader(test::blob_of(report.page, about.at("data")));
  std::map<std::uint32_t, const Span*> spans;
  for (const Span& span : trace.spans) spans[span.task] = &span;
  for (std::size_t lane = 0; lane < trace.lanes.size(); ++lane) {
    const auto count = reader.next();
    std::vector<Span> found(count);
    const auto differences = [&](const auto& set) {
      std::int64_t sum = 0;
      for (Span& span : found) set(span, sum += reader.next_signed());
    };
    differences([](Span& span, std::int64_t value) { span.start_ns = value; });
    for (Span& span : found) span.end_ns = span.start_ns + static_cast<std::int64_t>(reader.next());
    for (Span& span : found) {
      const auto& of = about.at("classes").at(reader.next());
      span.kind = of.at(0);
      span.bytes = of.at(2);
    }
    differences(
        [](Span& span, std::int64_t value) { span.task = static_cast<std::uint32_t>(value); });
    differences(
        [](Span& span, std::int64_t value) { span.step = static_cast<std::int32_t>(value); });
    differences(
        [](Span& span, std::int64_t value) { span.layer = static_cast<std::int32_t>(value); });
    differences([](Span& span, std::int64_t value) {
      span.micro_batch = static_cast<std::int32_t>(value);
    });
    differences(
        [](Span& span, std::int64_t value) { span.segment = static_cast<std::int32_t>(value); });
    for (const Span& span : found) {
      const Span& expected = *spans.at(span.task);
      CHECK(span.start_ns == expected.start_ns);
      CHECK(span.end_ns == expected.end_ns);
      CHECK(span.kind == expected.kind);
      CHECK(span.bytes == expected.bytes);
      CHECK(span.step == expected.step);
      CHECK(span.layer == expected.layer);
      CHECK(span.micro_batch == expected.micro_batch);
      CHECK(expected.lane == lane);
      spans.erase(span.task);
    }
  }
  CHECK(spans.empty());
  // Dependencies: those of the schedule.
  test::NumberReader edges(test::blob_of(report.page, about.at("dependencies")));
  REQUIRE(edges.next() == schedule.tasks().size());
  for (TaskId task = 0; task < schedule.tasks().size(); ++task) {
    std::vector<TaskId> successors(edges.next());
    TaskId before = task;
    for (TaskId& successor : successors) {
      const std::uint64_t code = edges.next();
      successor = before += static_cast<TaskId>(code / 4);
      CHECK(code % 4 == static_cast<std::uint64_t>(wait_between(schedule, task, successor)));
    }
    const auto expected = schedule.successors(task);
    CHECK(successors == std::vector<TaskId>(expected.begin(), expected.end()));
  }
  CHECK(edges.at_end());
}

TEST_CASE("the same trace gives the same bytes") {
  const test::TemporaryFolder folder;
  const Trace trace = recorded_trace(tiny_schedule("resident"), 3);
  CHECK(report_of(folder, trace).page == report_of(folder, trace).page);
}

TEST_CASE("a trace that does not say what it is of has its timeline, and says what is missing") {
  const test::TemporaryFolder folder;
  Trace bare = trace_of(tiny_schedule("fuyou"), "simulator");
  bare.metadata.clear();
  const Report report = report_of(folder, bare);
  const auto& one = report.summary.at("traces").at(0);
  CHECK(one.at("notes").size() == 2);
  CHECK_FALSE(one.contains("policy"));
  CHECK(one.at("step_seconds").get<double>() > 0);
  const auto about = nlohmann::json::parse(test::blob_of(report.page, "timelines")).at(0);
  CHECK(about.at("dependencies").is_null());
  CHECK(report.page.find("<section id=\"stalls\"") == std::string::npos);
}

TEST_CASE(
    "a run that knew no rates has its dependencies all the same, and a prediction with a machine") {
  const test::TemporaryFolder folder;
  const Schedule schedule = tiny_schedule("fuyou");
  Problem no_rates = schedule.problem();
  no_rates.machine = {};
  no_rates.machine.gpu.is_cpu = true;
  no_rates.machine.gpu.memory = no_rates.machine.host.memory = no_rates.machine.ssd.capacity =
      1 << 30;
  Trace unknown = recorded_trace(schedule, 1);
  unknown.metadata = make_trace(build_schedule(no_rates, "fuyou", 5), "executor").metadata;
  const Report without = report_of(folder, unknown);
  CHECK(without.summary.at("traces").at(0).at("notes").size() == 1);
  CHECK_THAT(without.page, Catch::Contains("There is no prediction") &&
                               Catch::Contains("<section id=\"stalls\"") &&
                               !Catch::Contains("<section id=\"prediction\""));
  ReportRequest request = {{folder.path() / "trace.json.gz"}, {}, {}};
  request.study.machine = load_machine("testbed");
  CHECK_THAT(make_report(request).page, Catch::Contains("<section id=\"prediction\""));
}

TEST_CASE("a trace that was cut in the middle of its schedule has no stalls, and says why") {
  const test::TemporaryFolder folder;
  Trace cut = recorded_trace(tiny_schedule("resident"), 1);
  cut.spans.resize(cut.spans.size() / 3);
  const Report report = report_of(folder, cut);
  CHECK_THAT(report.page, Catch::Contains("holds no whole run of its schedule") &&
                              Catch::Contains("<section id=\"prediction\""));
  CHECK(report.page.find("<section id=\"stalls\"") == std::string::npos);
}

TEST_CASE("several traces lie beside each other") {
  const test::TemporaryFolder folder;
  std::vector<std::filesystem::path> paths;
  for (const char* policy : {"resident", "fuyou", "zero-infinity"}) {
    paths.push_back(folder.path() / (std::string(policy) + ".json"));
    write_trace(trace_of(tiny_schedule(policy), "simulator"), paths.back().string());
  }
  const Report report = make_report({paths, {}, {}});
  CHECK(report.summary.at("traces").size() == 3);
  const auto timelines = nlohmann::json::parse(test::blob_of(report.page, "timelines"));
  REQUIRE(timelines.size() == 3);
  CHECK(timelines[1].at("title") == "fuyou.json");
  CHECK_THAT(report.page, Catch::Contains("<div class=\"beside\">"));
}

TEST_CASE("recorded times are explained as simulated ones are") {
  for (const char* policy : {"resident", "greedysnake", "zero-infinity"}) {
    INFO(policy);
    const Schedule schedule = tiny_schedule(policy);
    const SimulationResult result = simulate(schedule);
    const Explanation simulated = explain(schedule, result);
    const Explanation recorded = explain_recorded(schedule, result.tasks);
    CHECK(recorded.window.begin_ns == simulated.window.begin_ns);
    CHECK(recorded.stalls.idle_ns == simulated.stalls.idle_ns);
    CHECK(recorded.critical_path.tasks == simulated.critical_path.tasks);
    REQUIRE(recorded.critical_path.parts.size() == simulated.critical_path.parts.size());
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < recorded.critical_path.parts.size(); ++i) {
      CHECK(recorded.critical_path.parts[i].of == simulated.critical_path.parts[i].of);
      CHECK(recorded.critical_path.parts[i].ns == simulated.critical_path.parts[i].ns);
      CHECK(recorded.critical_path.parts[i].lost_ns.empty());
      sum += recorded.critical_path.parts[i].ns;
    }
    CHECK(sum == recorded.window.end_ns - recorded.window.begin_ns);
  }
}

}  // namespace
}  // namespace spillway
