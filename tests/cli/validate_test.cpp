// spillway validate: its JSON, and traces that are damaged or foreign.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

// Records a run of a few steps, plain and compressed.
struct Recorded {
  Recorded() {
    for (const std::string& name : {plain, compressed}) {
      std::filesystem::remove_all(folder / "run");
      const Outcome outcome =
          run(tiny_training(folder) + Words{"--machine", "testbed", "--steps", "4", "--no-export",
                                            "--quiet", "--trace", name});
      INFO(outcome.err);
      REQUIRE(outcome.exit_code == 0);
    }
  }
  TemporaryFolder folder;
  std::string plain = folder / "trace.json", compressed = folder / "trace.json.gz";
};

void check_seconds(const json& quantity) {
  // error = predicted / measured - 1
  const double predicted = quantity["predicted"], measured = quantity["measured"],
               error = quantity["error"];
  if (measured > 0) CHECK(error == Approx(predicted / measured - 1));
}

}  // namespace

TEST_CASE("validate --json holds the prediction against the recording") {
  const Recorded recorded;
  for (const std::string& trace : {recorded.plain, recorded.compressed}) {
    const Outcome outcome = run({"validate", trace, "--json"});
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK(outcome.err.empty());
    const json report = outcome.json();
    for (const char* key :
         {"predicted_step_seconds", "measured_step_seconds", "error", "kinds", "policy", "model",
          "machine", "measured_steps", "lanes", "critical_path", "first_divergence",
          "diverging_tasks", "matched_tasks"}) {
      INFO(key);
      CHECK(report.contains(key));
    }
    CHECK(report["policy"] == "zero-infinity");
    CHECK(report["measured_steps"] == 3);  // of four, the first fills the pipeline
    check_seconds({{"predicted", report["predicted_step_seconds"]},
                   {"measured", report["measured_step_seconds"]},
                   {"error", report["error"]}});
    for (const char* kind : {"forward", "backward", "optimizer", "read", "write", "h2d", "d2h"}) {
      INFO(kind);
      REQUIRE(report["kinds"].contains(kind));
      check_seconds(report["kinds"][kind]);
    }
    const Outcome text = run({"validate", trace});
    CHECK(text.exit_code == 0);
    CHECK_THAT(text.out, Catch::Contains("predicted") && Catch::Contains("measured") &&
                             Catch::Contains("forward"));
  }
  // The simulator's own trace is predicted without error.
  const std::string simulated = recorded.folder / "simulated.json";
  CHECK(run(Words{"simulate", "--machine", "testbed", "--policy", "zero-infinity", "--trace",
                  simulated} +
            tiny_problem())
            .exit_code == 0);
  const json report = run({"validate", simulated, "--json"}).json();
  CHECK(report["error"].get<double>() == Approx(0).margin(1e-9));
  CHECK(report["diverging_tasks"] == 0);
  CHECK(report["first_divergence"].is_null());
}

TEST_CASE("validate takes the rates of another machine") {
  const Recorded recorded;
  const double slow = run({"validate", recorded.plain, "--json"}).json()["predicted_step_seconds"];
  const double fast =
      run({"validate", recorded.plain, "--json", "--machine", "testbed", "--set", "ssd.read=80GB/s",
           "--set", "ssd.write=80GB/s", "--set", "ssd.total=160GB/s"})
          .json()["predicted_step_seconds"];
  CHECK(fast < slow);
  check_refusal(run({"validate", recorded.plain, "--set", "ssd.read=8GB/s"}), 2,
                "--set changes a key of --machine", "machine");
  check_refusal(run({"validate", recorded.plain, "--machine", "nope"}), 2, "unknown machine nope",
                "testbed");
}

TEST_CASE("A recording without a machine file needs one") {
  const TemporaryFolder folder;
  REQUIRE(run(tiny_training(folder) + Words{"--quiet", "--no-export"}).exit_code == 0);
  const std::string trace = folder / "run/trace.json.gz";
  check_refusal(run({"validate", trace}), 2, "recorded without a machine file",
                "--machine machine.toml");
  CHECK(run({"validate", trace, "--machine", "testbed"}).exit_code == 0);
}

TEST_CASE("A trace that is cut off, damaged, empty, missing or foreign is refused by name") {
  const Recorded recorded;
  const TemporaryFolder& folder = recorded.folder;
  const std::string plain = read_file(recorded.plain), compressed = read_file(recorded.compressed);
  const auto refused = [&](const std::string& path, const std::string& message) {
    INFO(path);
    check_refusal(run({"validate", path}), 2, message, "");
    check_refusal(run({"validate", "--json", path}), 2, message, "");
  };
  for (const std::size_t bytes :
       {std::size_t{20}, std::size_t{300}, plain.size() / 2, plain.size() - 3}) {
    refused(folder.write("cut.json", plain.substr(0, bytes)), "cut.json:");
  }
  for (const std::size_t bytes : {std::size_t{5}, compressed.size() / 2, compressed.size() - 4}) {
    refused(folder.write("cut.json.gz", compressed.substr(0, bytes)),
            "the compressed data is damaged or cut off");
  }
  std::string corrupt = compressed;
  for (std::size_t i = 0; i < 64; ++i)
    corrupt[corrupt.size() / 2 + i] = static_cast<char>(~corrupt[corrupt.size() / 2 + i]);
  refused(folder.write("corrupt.json.gz", corrupt), "corrupt.json.gz");
  std::string other = plain;
  other[other.find("\"dur\":") + 6] = 'x';
  refused(folder.write("corrupt.json", other), "corrupt.json:");
  refused(folder.write("empty.json", ""), "the file is empty");
  refused(folder.write("text.json", "not a trace"), "not a trace of Spillway");
  refused(folder.write("foreign.json",
                       R"({"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":2,"pid":1,"tid":1}]})"),
          "not a trace of Spillway");
  refused(folder / "missing.json", "no such trace file");
  refused(recorded.plain + "/below", "no such trace file");
  refused(folder.path().string(), "this is a folder");
}
