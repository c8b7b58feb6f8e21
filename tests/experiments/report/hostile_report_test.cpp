// What others wrote is shown and never run: markup in names, texts, tables and pictures stays text.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "experiments/report/report.hpp"
#include "policies/common/policy.hpp"
#include "policies/common/run_record.hpp"
#include "sim/to_trace.hpp"
#include "tests/experiments/report/page_reader.hpp"
#include "tests/temporary_folder.hpp"
#include "traces/perfetto.hpp"

namespace spillway {
namespace {

const std::string attack =
    "\"'></script></title><script>alert(1)</script><img src=x onerror=alert(1)>";

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Outside of the data that scripts read, which is base64.
void check_harmless(const std::string& page) {
  CHECK(page.find("<script>alert") == std::string::npos);
  CHECK(page.find("<img src=x") == std::string::npos);
  CHECK(page.find("</title><") == std::string::npos);
  CHECK_THAT(page, Catch::Contains("default-src 'none'"));
}

TEST_CASE("names in a trace are text") {
  const test::TemporaryFolder folder;
  Trace trace;
  trace.lanes = {"lane " + attack, "other"};
  trace.kinds = {"kind " + attack};
  trace.phases = {"phase " + attack};
  trace.tiers = {"tier " + attack};
  trace.spans.push_back({0, 0, 0, 0, 0, 0, 1, 1, 0, 1000, 10, 1e6, 0});
  trace.spans.push_back({1, 1, 0, 0, 0, 1, 1, 1, 2000, 3000, 10, 1e6, 0});
  trace.memory.push_back({0, 0, 100});
  trace.set_metadata("policy", nlohmann::json(attack).dump());
  trace.set_metadata("model", nlohmann::json(attack).dump());
  trace.set_metadata("source", "\"executor\"");
  // The name of the file, too.
  const auto path = folder.path() / "<img src=x onerror=alert(1)>.json";
  write_trace(trace, path.string());
  const Report report = make_report({{path}, {}, {}});
  check_harmless(report.page);
  CHECK_THAT(report.page, Catch::Contains("&lt;img src=x onerror=alert(1)&gt;.json"));
  CHECK_THAT(report.page, Catch::Contains("lane &quot;&#39;&gt;&lt;/script&gt;"));
  const auto about = nlohmann::json::parse(test::blob_of(report.page, "timelines")).at(0);
  CHECK(about.at("lanes").at(0) == "lane " + attack);  // set as text by the page's script
}

TEST_CASE("a model's name in the metadata of a trace is text") {
  const test::TemporaryFolder folder;
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.model.name = "m <img src=x onerror=alert(1)>";
  problem.machine = load_machine("testbed");
  problem.machine.sources["gpu.flops"] = "<script>alert(1)</script>";
  problem.workload = {8, 2, 64, Precision::fp32, GradientWidth::automatic};
  problem.overrides = {"gpu.flops=<script>alert(1)</script>"};
  const Schedule schedule = build_schedule(problem, "resident", 3);
  Trace trace = to_trace(schedule, simulate(schedule));
  trace.metadata = make_trace(schedule, "simulator").metadata;
  const auto path = folder.path() / "trace.json";
  write_trace(trace, path.string());
  const Report report = make_report({{path}, {}, {}});
  check_harmless(report.page);
  CHECK_THAT(report.page, Catch::Contains("m &lt;img src=x"));
}

TEST_CASE("times that no training has are refused") {
  const test::TemporaryFolder folder;
  Trace trace;
  trace.lanes = {"gpu.compute"};
  trace.kinds = {"forward"};
  trace.phases = {"forward"};
  for (const std::int64_t far : {std::int64_t{1} << 60, -(std::int64_t{1} << 60)}) {
    trace.spans = {{0, 0, 0, 0, 0, 0, 1, 1, far, far + 1000, 10, 1e6, 0}};
    const auto path = folder.path() / "far.json";
    write_trace(trace, path.string());
    CHECK_THROWS_AS(make_report({{path}, {}, {}}), InputError);
  }
}

// The folder of a sweep with one axis.
void write_sweep(const std::filesystem::path& folder, const std::string& value,
                 const std::string& reason) {
  std::filesystem::create_directories(folder / "parts");
  write(folder / "results.csv",
        "policy,status,reason,hint,tokens_per_second,step_seconds\r\n"
        "\"" +
            value + "\",ok,,,100.5,2\r\nfuyou,does not fit,\"" + reason + "\",,,\r\n");
}

TEST_CASE("cells of a table are text, and a picture is an image") {
  const test::TemporaryFolder folder;
  const std::string quoted = "<script>alert(1)</script><img src=x onerror=alert(1)>";
  write_sweep(folder.path(), quoted, quoted);
  std::filesystem::create_directories(folder / "plots");
  const std::string picture =
      "<svg xmlns=\"http://www.w3.org/2000/svg\"><script>alert(1)</script></svg>";
  write(folder / "plots/<img src=x onerror=alert(1)>.svg", picture);
  write(folder / "plots/line.png", "no picture at all");
  write(folder / "plots/notes.txt", "secret");
  const Report report = make_report({{folder.path()}, {}, {}});
  CHECK(report.kind == "sweep");
  check_harmless(report.page);
  CHECK(report.summary.at("sweep").at("points") == 2);
  CHECK(report.summary.at("sweep").at("fastest_tokens_per_second") == 100.5);
  CHECK_THAT(report.page, Catch::Contains("data:image/svg+xml;base64,") &&
                              Catch::Contains("data:image/png;base64,") &&
                              Catch::Contains("alt=\"&lt;img src=x onerror=alert(1)&gt;\"") &&
                              !Catch::Contains("secret"));
  const auto tables = nlohmann::json::parse(test::blob_of(report.page, "data-tables"));
  CHECK(tables.at(0).at("rows") == 2);
}

TEST_CASE("links in the folder of a sweep do not lead out of it") {
  const test::TemporaryFolder folder, other;
  write_sweep(folder.path(), "resident", "too large");
  write(other / "private.svg", "<svg>private</svg>");
  std::filesystem::create_directories(folder / "plots");
  std::filesystem::create_symlink(other / "private.svg", folder / "plots/linked.svg");
  const Report report = make_report({{folder.path()}, {}, {}});
  CHECK_THAT(report.page,
             !Catch::Contains("data:image") && Catch::Contains("A picture is left out"));
  std::filesystem::remove_all(folder / "plots");
  std::filesystem::create_symlink(other.path(), folder / "plots");
  CHECK_THAT(make_report({{folder.path()}, {}, {}}).page, !Catch::Contains("data:image"));
  std::filesystem::remove(folder / "results.csv");
  std::filesystem::create_symlink(other / "private.svg", folder / "results.csv");
  CHECK_THROWS_AS(make_report({{folder.path()}, {}, {}}), InputError);
}

}  // namespace
}  // namespace spillway
