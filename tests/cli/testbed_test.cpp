// spillway testbed and train --throttle: what they print and leave, and that a run goes on.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

const std::string regime = R"(name = "tiny"
description = "a small machine"
throttle = "gpu=2GFLOPS,h2d=50MB/s,d2h=50MB/s,ssd.read=100MB/s,ssd.write=80MB/s,ssd.total=120MB/s"
model = "gpt-tiny"
sequence = 16
batches = [1]
gpu_memory = "64MB"
host_memory = "64MB"
policies = ["resident", "zero-infinity"]
)";

}  // namespace

TEST_CASE("testbed measures each configuration once: a second run reads what the first one left",
          "[slow]") {
  const TemporaryFolder folder;
  const std::string file = folder.write("tiny.toml", regime), out = folder / "out";
  const Words arguments = {"testbed", "--regime", file,         "--machine",
                           "testbed", "--steps",  "3",          "--json",
                           "--out",   out,        "--markdown", folder / "report.md"};
  const Outcome first = run(arguments);
  INFO(first.err);
  REQUIRE(first.exit_code == 0);
  const json rows = first.json()["rows"];
  REQUIRE(rows.size() == 2);
  for (const json& row : rows) {
    CHECK(row["regime"] == "tiny");
    CHECK(row["measured_seconds"] > 0.0);
    CHECK(row["predicted_seconds"] > 0.0);
    CHECK(row["steps"] == 2);
    CHECK(row["kinds"].contains("forward"));
  }
  CHECK(rows[1]["policy"] == "zero-infinity");
  CHECK(rows[1]["kinds"].contains("read"));
  CHECK(first.json()["summary"]["throttled"]["configurations"] == 2);
  CHECK_THAT(read_file(folder / "report.md"), Catch::Contains("| zero-infinity | 1 |") &&
                                                  Catch::Contains("spillway testbed --regime"));
  CHECK(lines_of(read_file(folder / "out/results.csv")).size() == 3);

  const Outcome second = run(arguments);
  REQUIRE(second.exit_code == 0);
  CHECK(second.json()["rows"] == rows);  // to the last digit: not measured again

  // Another length of runs is another measurement.
  Words longer = arguments;
  longer[6] = "4";
  const Outcome third = run(longer);
  REQUIRE(third.exit_code == 0);
  CHECK(third.json()["rows"][0]["steps"] == 3);
}

TEST_CASE("testbed --list names the configurations and runs none") {
  const Outcome outcome = run({"testbed", "--list", "--json", "--regime", "ssd-bound"});
  REQUIRE(outcome.exit_code == 0);
  const json list = outcome.json()["configurations"];
  CHECK(list.size() >= 12);
  for (const json& configuration : list) CHECK(configuration["regime"] == "ssd-bound");
}

TEST_CASE("testbed runs unthrottled configurations in rounds, every one of them read again") {
  const TemporaryFolder folder;
  const std::string file = folder.write("here.toml", R"(name = "here"
description = "this machine"
throttle = ""
model = "gpt-tiny"
sequence = 16
batches = [1]
gpu_memory = "64MB"
host_memory = "64MB"
policies = ["resident", "zero-infinity"]
)");
  const Words arguments = {"testbed", "--regime", file,     "--machine", "testbed",
                           "--steps", "3",        "--json", "--out",     folder / "out"};
  const Outcome first = run(arguments + Words{"--rounds", "2", "--most-rounds", "2"});
  INFO(first.err);
  REQUIRE(first.exit_code == 0);
  const json rows = first.json()["rows"];
  REQUIRE(rows.size() == 2);
  for (const json& row : rows) {
    REQUIRE(row["rounds"].size() == 2);
    CHECK(row["runs"] == 2);
    const double one = row["rounds"][0]["measured_seconds"],
                 two = row["rounds"][1]["measured_seconds"];
    CHECK(row["measured_seconds"].get<double>() == Approx((one + two) / 2));
  }
  // A third round is added to those there are.
  const Outcome more = run(arguments + Words{"--rounds", "3", "--most-rounds", "3"});
  REQUIRE(more.exit_code == 0);
  const json again = more.json()["rows"];
  CHECK(again[1]["rounds"][0] == rows[1]["rounds"][0]);
  CHECK(again[1]["rounds"][1] == rows[1]["rounds"][1]);
  CHECK(again[1]["rounds"].size() == 3);
  // Others follow where the mean is not known well enough, and only there.
  const Outcome known = run(arguments + Words{"--rounds", "3", "--most-rounds", "5"});
  REQUIRE(known.exit_code == 0);
  for (const json& row : known.json()["rows"]) {
    const std::size_t rounds = row["rounds"].size();
    CHECK(rounds >= 3);
    CHECK(rounds <= 5);
    CHECK((rounds == 5 || row["standard_error"].get<double>() <= 0.01));
  }
}

TEST_CASE("testbed refuses what it cannot run, with a hint") {
  check_refusal(run({"testbed", "--regime", "mixd"}), 2, "unknown regime mixd", "mixed");
  const TemporaryFolder folder;
  check_refusal(run({"testbed", "--steps", "2", "--out", folder / "out"}), 2,
                "--steps must be at least 3", "does not count");
  check_refusal(run({"testbed", "--rounds", "0", "--out", folder / "out"}), 2,
                "--rounds must be at least 1", "one run of a configuration");
  check_refusal(run({"testbed", "--rounds", "4", "--most-rounds", "3", "--out", folder / "out"}), 2,
                "--most-rounds 3 is less than --rounds 4", "at least as many");
  check_refusal(run({"testbed", "--steps", "11", "--out", folder / "out"}), 2, "--steps 11 is more",
                "at most 10");
}

TEST_CASE("A throttled run says so, and no lane moves more than its rate") {
  const TemporaryFolder folder;
  const std::string throttle = "h2d=20MB/s,d2h=30MB/s,ssd.read=40MB/s,ssd.write=50MB/s,gpu=1GFLOPS";
  const Outcome outcome =
      run(tiny_training(folder) + Words{"--json", "--steps", "2", "--machine", "testbed",
                                        "--throttle", throttle, "--trace", folder / "trace.json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(outcome.json_lines()[0]["throttle"] == throttle);

  const json trace = json::parse(read_file(folder / "trace.json"));
  CHECK(trace["otherData"]["throttle"] == throttle);
  struct Used {
    double first = 1e300, last = 0, amount = 0;
  };
  std::map<std::string, Used> lanes;
  double began = 1e300;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const std::string kind = event["args"]["kind"];
    const bool computes = event["args"]["flops"] > 0.0;
    const double start = event["ts"], end = start + event["dur"].get<double>();
    began = std::min(began, start);
    Used& used = lanes[computes ? "gpu" : kind];
    used.last = std::max(used.last, end);
    used.amount += event["args"][computes ? "flops" : "bytes"].get<double>();
  }
  // Times are microseconds. A lane may begin its first task a moment before its span does, but
  // never before the first span of all.
  const std::map<std::string, double> rates = {
      {"gpu", 1e3}, {"h2d", 20}, {"d2h", 30}, {"read", 40}, {"write", 50}};
  for (const auto& [kind, rate] : rates) {
    INFO(kind);
    REQUIRE(lanes[kind].amount > 0);
    CHECK(lanes[kind].last - began + 1000 >= lanes[kind].amount / rate);
  }
}

TEST_CASE("A throttle changes time, never numbers") {
  const auto losses = [](const Words& extra) {
    const TemporaryFolder folder;
    const Outcome outcome = run(tiny_training(folder) + Words{"--json", "--steps", "3"} + extra);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    std::vector<std::string> all;
    for (const json& event : outcome.json_lines()) {
      if (event["event"] == "step") all.push_back(event["loss"].dump());
      if (event["event"] == "end") all.push_back(event["weights_hash"]);
    }
    return all;
  };
  CHECK(losses({}) == losses({"--throttle", "h2d=30MB/s,ssd.read=30MB/s,gpu=2GFLOPS"}));
}

TEST_CASE("train refuses a throttle it does not understand") {
  const TemporaryFolder folder;
  check_refusal(run(tiny_training(folder) + Words{"--throttle", "pcie=2GB/s"}), 2,
                "unknown key pcie", "h2d");
}
