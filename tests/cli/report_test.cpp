// spillway report: its JSON, the page it writes, and what it refuses.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

std::string simulated(const TemporaryFolder& folder, const std::string& policy,
                      const std::string& name) {
  const std::string path = folder / name;
  const Outcome outcome =
      run(Words{"simulate", "--machine", "testbed", "--policy", policy, "--trace", path} +
          tiny_problem());
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return path;
}

}  // namespace

TEST_CASE("report --json says what the page's summary shows, and where the page is") {
  const TemporaryFolder folder;
  const std::string trace = simulated(folder, "zero-infinity", "trace.json.gz");
  const std::string page = folder / "page.html";
  const Outcome outcome = run({"report", trace, "--out", page, "--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(outcome.err.empty());
  const json report = outcome.json();
  CHECK(report["kind"] == "traces");
  CHECK(report["path"] == page);
  const std::string text = read_file(page);
  CHECK(report["page_bytes"] == text.size());
  const json simulation =
      run(Words{"simulate", "--machine", "testbed", "--policy", "zero-infinity", "--json"} +
          tiny_problem())
          .json();
  const json& one = report["traces"][0];
  for (const char* key : {"policy", "model", "machine", "step_seconds", "tokens_per_second",
                          "model_tflops", "efficiency", "bound_seconds", "tasks"}) {
    INFO(key);
    CHECK(one[key] == simulation[key]);
  }
  CHECK_THAT(text, Catch::StartsWith("<!doctype html>") && Catch::EndsWith("</html>\n"));
  const Outcome plain = run({"report", trace, "--out", page});
  CHECK(plain.exit_code == 0);
  CHECK_THAT(plain.out, Catch::Contains(page));
  CHECK(read_file(page) == text);
}

TEST_CASE("the folder of a run has a page with its training and its trace") {
  const TemporaryFolder folder;
  REQUIRE(run(tiny_training(folder) +
              Words{"--machine", "testbed", "--steps", "4", "--no-export", "--quiet"})
              .exit_code == 0);
  const std::string page = folder / "page.html";
  const Outcome outcome = run({"report", folder / "run", "--out", page, "--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const json report = outcome.json();
  CHECK(report["kind"] == "run");
  CHECK(report["run"]["state"] == "done");
  CHECK(report["run"]["steps_done"] == 4);
  CHECK(report["run"]["loss"].get<double>() == recorded_losses(folder / "run").at(3));
  const json validated = run({"validate", folder / "run/trace.json.gz", "--json"}).json();
  REQUIRE(report["traces"].size() == 1);
  for (const char* key : {"predicted_step_seconds", "measured_step_seconds", "error"}) {
    INFO(key);
    CHECK(report["traces"][0][key] == validated[key]);
  }
  const std::string text = read_file(page);
  for (const char* section : {"training", "prediction", "stalls", "path", "work", "memory"}) {
    INFO(section);
    CHECK_THAT(text, Catch::Contains("<section id=\"" + std::string(section) + "\""));
  }
  // The page says nothing of when it was made.
  REQUIRE(run({"report", folder / "run", "--out", folder / "again.html"}).exit_code == 0);
  CHECK(read_file(folder / "again.html") == text);
}

TEST_CASE("report refuses what it cannot show, and files that are no page") {
  const TemporaryFolder folder;
  const std::string trace = simulated(folder, "resident", "trace.json");
  const std::string page = folder / "page.html";
  check_refusal(run({"report", folder / "nothing", "--out", page}), 2, "no such file or folder",
                "spelling");
  check_refusal(run({"report", folder.path().string(), "--out", page}), 2,
                "no run, sweep or testbed in this folder", "train");
  check_refusal(run({"report", folder.path().string(), trace, "--out", page}), 2,
                "a folder has a page of its own", "alone");
  check_refusal(run({"report", "--out", page}), 2, "required", "report --help");
  check_refusal(run({"report", trace, "--set", "ssd.count=6", "--out", page}), 2,
                "--set changes a key of --machine", "machine");
  check_refusal(run({"report", trace, "--out", trace}), 2, "not a report", "");
  check_refusal(run({"report", trace, "--out", folder / "missing/page.html"}), 2, "--out", "");
  CHECK_FALSE(std::filesystem::exists(page));
  const std::string mine = folder.write("mine.html", "<!doctype html><p>my own</p>");
  check_refusal(run({"report", trace, "--out", mine}), 2, "mine.html", "");
  CHECK(read_file(mine) == "<!doctype html><p>my own</p>");
  // Traces may follow settings.
  CHECK(run({"report", "--out", page, "--machine", "testbed", "--set", "ssd.read=80GB/s", trace})
            .exit_code == 0);
}

TEST_CASE("several traces make one page") {
  const TemporaryFolder folder;
  const std::string a = simulated(folder, "resident", "a.json.gz");
  const std::string b = simulated(folder, "fuyou", "b.json.gz");
  const json report = run({"report", a, b, "--out", folder / "page.html", "--json"}).json();
  REQUIRE(report["traces"].size() == 2);
  CHECK(report["traces"][0]["trace"] == "a.json.gz");
  CHECK_THAT(report["traces"][1]["policy"].get<std::string>(), Catch::StartsWith("fuyou"));
}
