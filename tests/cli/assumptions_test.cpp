// What `simulate` says of assumed values and of what is extrapolated.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"
#include "tests/policies/machine/machine_text.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

Words simulation(const std::string& machine) {
  return Words{"simulate", "--machine", machine, "--policy", "zero-infinity"} + tiny_problem();
}

json value_with(const json& assumed, const std::string& key) {
  for (const json& value : assumed["values"]) {
    for (const json& one : value["keys"]) {
      if (one == key) return value;
    }
  }
  FAIL(key + " is not there");
  return {};
}

}  // namespace

TEST_CASE("simulate names the assumed values that move the step, and counts the others") {
  const TemporaryFolder folder;
  const std::string file = folder.write("m.toml", spillway::small_machine + spillway::small_drives);
  const Outcome outcome = run(simulation(file));
  INFO(outcome.err << outcome.out);
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("values may move the step by more than 1 %") &&
                              Catch::Contains("the other ") &&
                              Catch::Contains("by less than 1 %: "));
  CHECK_THAT(outcome.out, Catch::Contains("none to 80 us"));  // ssd.read_latency, left out
  // Left out on request; then it says how to ask.
  const std::string short_text = run(simulation(file) + Words{"--no-sensitivity"}).out;
  CHECK_THAT(short_text, Catch::Contains("--sensitivity says how far") &&
                             Catch::Contains("ssd.law") && !Catch::Contains("less than 1 %"));
}

TEST_CASE(
    "simulate --json lists what is assumed, and with --sensitivity how far it moves the step") {
  const TemporaryFolder folder;
  const std::string file = folder.write("m.toml", spillway::small_machine + spillway::small_drives);
  const json quick = run(simulation(file) + Words{"--json"}).json();
  const json law = value_with(quick["assumed"], "ssd.law");
  CHECK(law["value"] == "capped");
  CHECK(law["low"] == "simplex");
  CHECK(law["high"] == "duplex");
  CHECK(law["low_step_seconds"].is_null());
  CHECK(quick["assumed"]["slowest_step_seconds"].is_null());
  const json full = run(simulation(file) + Words{"--json", "--sensitivity"}).json();
  CHECK(full["step_seconds"] == quick["step_seconds"]);
  // As with the setting itself.
  const json simplex = run(simulation(file) + Words{"--json", "--set", "ssd.law=simplex"}).json();
  CHECK(value_with(full["assumed"], "ssd.law")["low_step_seconds"] == simplex["step_seconds"]);
  const json waits =
      run(simulation(file) + Words{"--json", "--set", "ssd.read_latency=80us"}).json();
  CHECK(value_with(full["assumed"], "ssd.read_latency")["high_step_seconds"] ==
        waits["step_seconds"]);
  CHECK(full["assumed"]["slowest_step_seconds"] >= full["step_seconds"]);
  CHECK(full["assumed"]["fastest_step_seconds"] <= full["step_seconds"]);
  // What is set by hand is assumed no longer.
  for (const json& value : simplex["assumed"]["values"]) CHECK(value["keys"][0] != "ssd.law");
}

TEST_CASE("Where a plan does not fit, what is assumed is listed all the same") {
  const json result = run(simulation("testbed") + Words{"--json", "--gpu-memory", "100KB"}).json();
  CHECK(result["fits"] == false);
  CHECK(result["assumed"]["values"].is_array());
  CHECK(result["extrapolates"].empty());
}

TEST_CASE("Drives and queue depths beyond the file's tables are told by simulate and compare") {
  const TemporaryFolder folder;
  const std::string file =
      folder.write("m.toml", spillway::small_machine + spillway::small_table +
                                 "by_queue_depth = [ { depth = 4, read = 0.5, write = 0.6 }, "
                                 "{ depth = 64, read = 1, write = 1 } ]\n");
  const Words deep = {"--set", "ssd.count=24"};
  const std::string told = "24 drives: ssd.by_count has rows for 1 to 12";
  CHECK(run(simulation(file) + Words{"--json"}).json()["extrapolates"].empty());
  const Outcome text = run(simulation(file) + deep);
  INFO(text.err);
  CHECK_THAT(text.out, Catch::Contains("extrapolated: " + told));
  CHECK(run(simulation(file) + deep + Words{"--json"}).json()["extrapolates"] == json{told});
  const json shallow = run(simulation(file) + Words{"--json", "--set", "ssd.queue_depth=2"}).json();
  CHECK(shallow["extrapolates"] == json{"queue depth 2: ssd.by_queue_depth has rows for 4 to 64"});
  const json rows = run(Words{"compare", "--machine", file, "--json", "--policy", "zero-infinity",
                              "--policy", "resident"} +
                        tiny_problem() + deep)
                        .json()["policies"];
  CHECK(rows[0]["extrapolates"] == json{told});
  CHECK(rows[1]["extrapolates"].empty());  // nothing of it is on drives
}
