// spillway tune: a plan that the other commands take as it is, the same one every time.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

const Words limits = {"--gpu-memory", "16MB", "--host-memory", "64MB"};

Words tune(const Words& more) {
  return Words{"tune", "--machine", "testbed"} + tiny_problem() + limits + more;
}

}  // namespace

TEST_CASE("tune prints a plan, what limits it and what it is compared with") {
  const Outcome outcome = run(tune({"--effort", "60", "--json"}));
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const json found = outcome.json();
  const json& best = found["best"];
  CHECK(found["bound_seconds"] <= best["step_seconds"]);
  CHECK(found["gap"].get<double>() ==
        Approx(1 - found["bound_seconds"].get<double>() / best["step_seconds"].get<double>()));
  CHECK(found["explored"] >= 60);
  CHECK_FALSE(found["stopped_by_clock"]);
  CHECK_FALSE(found["front"].empty());
  for (const json& one : found["runners_up"]) CHECK(one["step_seconds"] >= best["step_seconds"]);
  for (const json& one : found["relaxations"]) {
    CHECK(one["gain"] >= 0);
    CHECK_FALSE(one["set"].empty());
    // The plan that is named takes as long on that machine; a limit by hand is another flag.
    if (!one["set"].contains("ssd.count")) continue;
    Words there = {
        "simulate", "--json",      "--machine",     "testbed",
        "--policy", one["policy"], "--micro-batch", std::to_string(one["micro_batch"].get<int>()),
        "--set"};
    for (const auto& [key, value] : one["set"].items())
      there.push_back(key + "=" + value.get<std::string>());
    CHECK(run(there + tiny_problem() + limits).json()["step_seconds"].get<double>() ==
          Approx(one["step_seconds"].get<double>()).epsilon(1e-3));
  }
  // Its policy is one that other commands take, and they say of it what tune says.
  const std::string micro_batch = std::to_string(best["workload"]["micro_batch"].get<int>());
  const json again = run(Words{"simulate", "--machine", "testbed", "--json", "--policy",
                               best["policy"], "--micro-batch", micro_batch} +
                         tiny_problem() + limits)
                         .json();
  for (const char* key : {"policy", "step_seconds", "memory", "bound_by"})
    CHECK(again[key] == best[key]);
  for (const auto& [name, value] : best["settings"].items())
    CHECK_THAT(best["policy"].get<std::string>(),
               Catch::Contains(name + "=" + value.get<std::string>()));
  CHECK(run(tune({"--effort", "60", "--json", "--threads", "1"})).out == outcome.out);
}

TEST_CASE("a search goes on from its file of prices") {
  const TemporaryFolder folder;
  const std::string prices = folder / "prices";
  REQUIRE(run(tune({"--effort", "40", "--out", prices})).exit_code == 0);
  const Outcome resumed = run(tune({"--effort", "70", "--resume", prices, "--json"}));
  CHECK(resumed.out == run(tune({"--effort", "70", "--json"})).out);
  check_complaint(run(tune({"--out", prices})), 2, "is there already", "--resume");
  check_complaint(run(tune({"--resume", folder / "other"})), 2, "no such file", "--out");
  const std::string text = folder.write("text", "not a journal");
  check_complaint(run(tune({"--resume", text})), 2, "is not a journal of Spillway", "--out");
}

TEST_CASE("tune refuses what it cannot do") {
  check_complaint(run(tune({"--budget", "soon"})), 2, "--budget soon", "60s");
  check_complaint(run(tune({"--effort", "0"})), 2, "--effort 0", "leave it out");
  check_complaint(run(tune({"--threads", "0"})), 2, "--threads 0", "leave it out");
}

TEST_CASE("where nothing fits, tune says what would") {
  const Outcome outcome =
      run(Words{"tune", "--machine", "testbed", "--effort", "20", "--gpu-memory", "1MB"} +
          tiny_problem());
  check_complaint(outcome, 3, "does not fit", "--gpu-memory");
  const Outcome json =
      run(Words{"tune", "--machine", "testbed", "--effort", "20", "--gpu-memory", "1MB", "--json"} +
          tiny_problem());
  CHECK(json.exit_code == 3);
  CHECK(json.json()["best"].is_null());
  CHECK(json.json()["bound_seconds"].is_null());
  check_complaint(run(tune({"--budget", "0.000001s"})), 3, "no plan that was tried", "--budget");
}

TEST_CASE("tune --benchmark prints a row for each point of a grid, and what they come to") {
  const TemporaryFolder folder;
  const std::string grid = folder.write("grid.toml",
                                        "name = \"tiny\"\n[fixed]\nmodel = \"gpt-tiny\"\n"
                                        "machine = \"testbed\"\nsequence = 16\n"
                                        "[[axis]]\nbatch = [1, 2]\n");
  const Words words = {"tune", "--benchmark",      "--grid", grid,    "--effort",
                       "20",   "--smallest-batch", "90%",    "--out", folder / "rows"};
  const Outcome text = run(words);
  INFO(text.err);
  CHECK(text.exit_code == 0);
  CHECK_THAT(text.out, Catch::Contains("2 of 2 points fit") && Catch::Contains("smallest batch"));
  const json found = run(words + Words{"--json"}).json();
  CHECK(found["rows"].size() == 2);
  CHECK(found["rows"][1]["batch"] == "2");
  CHECK(found["summary"]["slower"] == 0);
  CHECK(found["batches"].size() == 1);
  check_complaint(run({"tune", "--benchmark", "--batch", "2"}), 2, "--batch excludes --benchmark",
                  "--help");
  check_complaint(run({"tune", "--benchmark", "--grid", "nowhere"}), 2, "unknown grid nowhere",
                  "TOML");
}
