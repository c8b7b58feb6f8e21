// What was set by hand stands beside every result.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"
#include "tests/policies/machine/machine_text.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;

namespace {

const Words problem = Words{"--machine", "testbed"} + tiny_problem();
const Words set_by_hand = {"--set", "model.layers=3", "host.memory=2GB", "--gpu-memory", "1GB"};
const std::string in_words = "set by hand: model.layers=3, host.memory=2GB, gpu_memory=1GB";
const nlohmann::json as_list = {"model.layers=3", "host.memory=2GB", "gpu_memory=1GB"};

bool has_gnuplot() { return std::system("gnuplot --version > /dev/null 2>&1") == 0; }

}  // namespace

TEST_CASE("Several settings can follow one --set, and options follow them") {
  const Words one_by_one = {"--set", "model.layers=3", "--set", "host.memory=2GB"};
  const Words at_once = {"--set", "model.layers=3", "host.memory=2GB"};
  for (const char* command : {"estimate", "simulate"}) {
    const Words policy = {"--policy", "resident", "--json"};
    nlohmann::json expected = run(Words{command} + problem + one_by_one + policy).json();
    nlohmann::json told = run(Words{command} + problem + at_once + policy).json();
    for (const char* key : {"memory", "step_seconds", "overrides", "policy"})
      CHECK(told[key] == expected[key]);
    CHECK(told["overrides"].size() == 2);
  }
  CHECK(run(Words{"compare"} + problem + at_once + Words{"--json"}).json()["policies"].size() > 3);
  // The second of one key wins, and is the one that is told.
  CHECK(run(Words{"estimate", "--policy", "resident", "--json"} + problem +
            Words{"--set", "model.layers=3", "model.layers=2"})
            .json()["overrides"] == nlohmann::json{"model.layers=2"});
}

TEST_CASE("The trace may follow the settings of validate") {
  const TemporaryFolder folder;
  const std::string trace = folder / "t.json";
  REQUIRE(run(Words{"simulate", "--policy", "greedysnake", "--trace", trace} + problem).exit_code ==
          0);
  const Words settings = {"--set", "pcie.h2d=1GB/s", "ssd.read=1GB/s"};
  const Words machine = {"validate", "--machine", "testbed"};
  const Outcome before = run(machine + Words{trace} + settings);
  const Outcome after = run(machine + settings + Words{trace, "--json"});
  INFO(before.err << after.err);
  CHECK(before.exit_code == 0);
  CHECK(after.exit_code == 0);
  check_refusal(run(machine + settings), 2, "trace is required", "validate --help");
}

TEST_CASE("What was set by hand, the precision and the steps are in every text") {
  const Words policy = {"--policy", "greedysnake", "--precision", "bf16"};
  for (const Words& command : {Words{"estimate"} + policy, Words{"simulate"} + policy,
                               Words{"compare", "--precision", "bf16"}}) {
    const Outcome outcome = run(command + problem + set_by_hand);
    INFO(command.front() << "\n" << outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK_THAT(outcome.out,
               Catch::Contains("bf16") && Catch::Contains("6 steps simulated; " + in_words));
  }
  CHECK_THAT(run(Words{"simulate", "--steps", "4"} + policy + problem).out,
             Catch::Contains("bf16, 4 steps simulated\n"));
}

TEST_CASE("What was set by hand, the precision and the steps are in all JSON and every trace") {
  const TemporaryFolder folder;
  const std::string trace = folder / "t.json";
  const nlohmann::json simulated =
      run(Words{"simulate", "--policy", "greedysnake", "--json", "--steps", "4", "--trace", trace} +
          problem + set_by_hand)
          .json();
  CHECK(simulated["overrides"] == as_list);
  CHECK(simulated["steps"] == 4);
  CHECK(simulated["workload"]["precision"] == "fp32");
  const std::string written = read_file(trace);
  CHECK_THAT(written, Catch::Contains("\"overrides\"") && Catch::Contains("model.layers=3") &&
                          Catch::Contains("gpu_memory=1GB"));
  const Outcome validated = run({"validate", trace});
  INFO(validated.err);
  CHECK_THAT(validated.out, Catch::Contains("fp32, 4 steps simulated; " + in_words));
  const nlohmann::json report = run({"validate", trace, "--json"}).json();
  CHECK(report["overrides"] == as_list);
  CHECK(report["workload"] == simulated["workload"]);
  CHECK(report["steps"] == 4);
  // Another machine: the rates that were set by hand are its own, the limits are as recorded.
  CHECK(run({"validate", trace, "--json", "--machine", "testbed", "--set", "ssd.read=1GB/s"})
            .json()["overrides"] ==
        nlohmann::json{"model.layers=3", "host.memory=2GB", "gpu_memory=1GB", "ssd.read=1GB/s"});
  for (const nlohmann::json& one :
       run(Words{"compare", "--json"} + problem + set_by_hand).json()["policies"])
    CHECK(one["overrides"] == as_list);
}

TEST_CASE("A limit is told in place of its key, and is no key itself") {
  const Words limited = Words{"estimate", "--json", "--policy", "resident"} + problem +
                        Words{"--set", "gpu.memory=2GB", "--gpu-memory", "1GB"};
  CHECK(run(limited).json()["overrides"] == nlohmann::json{"gpu_memory=1GB"});
  const Outcome refused = run(Words{"estimate"} + problem + Words{"--set", "gpu_memory=1GB"});
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, Catch::Contains("--set gpu_memory=1GB: a limit on what training may") &&
                              Catch::Contains("--gpu-memory 1GB"));
}

TEST_CASE("What was set by hand is told at the start of a training") {
  const TemporaryFolder folder;
  const std::vector<nlohmann::json> events =
      run(tiny_training(folder) + Words{"--json", "--set", "model.layers=2"}).json_lines();
  REQUIRE_FALSE(events.empty());
  CHECK(events.front()["overrides"] ==
        nlohmann::json{"model.layers=2", "gpu_memory=32MB", "host_memory=64MB"});
  CHECK(events.front()["workload"]["precision"] == "fp32");
  CHECK(events.front()["steps"] == 2);
  const TemporaryFolder other;
  CHECK_THAT(run(tiny_training(other)).out,
             Catch::Contains("2 steps, fp32; set by hand: gpu_memory=32MB, host_memory=64MB"));
}

TEST_CASE("What was set by hand is in the picture of a step, and in the rows of a sweep") {
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "s.toml",
      "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\nbatch = 2\n"
      "policy = \"resident\"\n\"model.layers\" = 3\nprecision = \"bf16\"\nsteps = 4\n"
      "[[axis]]\n\"host.memory\" = [\"2GB\"]\n");
  REQUIRE(run({"sweep", file, "--out", folder / "out"}).exit_code == 0);
  const Words lines = lines_of(read_file(folder.path() / "out" / "results.csv"));
  CHECK_THAT(lines[0],
             Catch::Contains(",workload.precision,") && Catch::Contains(",steps,overrides,"));
  CHECK_THAT(lines[1], Catch::Contains("bf16") && Catch::Contains("host.memory=2GB") &&
                           Catch::Contains("model.layers=3"));
  if (!has_gnuplot()) {
    WARN("there is no gnuplot");
    return;
  }
  REQUIRE(run(Words{"simulate", "--policy", "greedysnake", "--gantt", folder / "g.svg"} + problem +
              set_by_hand)
              .exit_code == 0);
  const std::string picture = read_file(folder.path() / "g.svg");
  CHECK_THAT(picture, Catch::Contains("fp32") && Catch::Contains("model.layers=3") &&
                          Catch::Contains("gpu_memory=1GB"));
}

TEST_CASE("Beyond the drives that a machine file knows, tables say extrapolated") {
  const TemporaryFolder folder;
  const std::string machine =
      folder.write("m.toml", spillway::small_machine + spillway::small_table);
  const auto told = [&](const char* drives) {
    return run(Words{"compare", "--machine", machine, "--set", drives} + tiny_problem());
  };
  CHECK_THAT(told("ssd.count=12").out, !Catch::Contains("extrapolated"));
  const std::string beyond = told("ssd.count=24").out;
  for (const std::string& line : lines_of(beyond)) {
    if (line.rfind("zero-infinity", 0) == 0) CHECK_THAT(line, Catch::Contains("extrapolated"));
    if (line.rfind("resident", 0) == 0) CHECK_THAT(line, !Catch::Contains("extrapolated"));
  }
  CHECK_THAT(beyond, Catch::Contains("24 drives: ssd.by_count has rows for 1 to 12"));
  const Words estimate = Words{"estimate", "--machine", machine, "--policy", "fuyou"} +
                         tiny_problem() + Words{"--set", "ssd.count=24"};
  CHECK_THAT(run(estimate).out, Catch::Contains("extrapolated"));
  const nlohmann::json json = run(estimate + Words{"--json"}).json();
  CHECK(json["extrapolated"] == true);
  CHECK(json["extrapolates"] == nlohmann::json{"24 drives: ssd.by_count has rows for 1 to 12"});
  // Bandwidths that somebody knows are not guessed.
  CHECK_THAT(run(estimate + Words{"ssd.read=80GB/s", "ssd.write=60GB/s"}).out,
             !Catch::Contains("extrapolated"));
}
