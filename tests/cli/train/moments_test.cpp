// --moments: in training and after a resume, in what is estimated, simulated, compared and swept.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

const Words bf16 = {"--moments", "bf16"};

json result(const Words& arguments) {
  const Outcome outcome = run(arguments + Words{"--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json();
}

std::uint64_t written_by_commit(const json& start) {
  return start["durability"]["bytes_copied_per_commit"];
}

}  // namespace

TEST_CASE("train --moments bf16 has losses of its own, alike under two policies, and validates") {
  const TemporaryFolder folder;
  const auto train = [&](const Words& arguments) {
    fs::remove_all(folder / "run");
    const Outcome outcome =
        run(tiny_training(folder) +
            Words{"--json", "--no-export", "--steps", "4", "--machine", "testbed"} + arguments);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return outcome.json_lines();
  };
  const auto wide = train({"--policy", "resident"});
  const auto narrow = train(bf16 + Words{"--policy", "resident"});
  CHECK(wide.front()["workload"]["moments"] == "fp32");
  CHECK(narrow.front()["workload"]["moments"] == "bf16");
  CHECK(narrow.back()["weights_hash"] != wide.back()["weights_hash"]);
  // Commits copy all state from memory: 12 and 8 bytes a parameter.
  CHECK(3 * written_by_commit(narrow.front()) == 2 * written_by_commit(wide.front()));
  const auto other = train(bf16 + Words{"--policy", "zero-infinity"});
  CHECK(other.back()["weights_hash"] == narrow.back()["weights_hash"]);
  // The trace says how wide they were: its schedule is built again from that.
  const Outcome validated = run({"validate", folder / "run/trace.json.gz"});
  INFO(validated.err);
  CHECK(validated.exit_code == 0);
}

TEST_CASE("a run with --moments bf16 is resumed with them, and not with others") {
  const TemporaryFolder folder;
  const Words arguments =
      tiny_training(folder) + bf16 + Words{"--policy", "zero-infinity", "--json", "--no-export"};
  const Outcome whole = run(arguments + Words{"--steps", "6", "--run", folder / "whole"});
  REQUIRE(whole.exit_code == 0);
  REQUIRE(run(arguments + Words{"--steps", "3"}).exit_code == 0);
  const Words resume = {"train", "--resume", "--run", folder / "run", "--steps", "6"};
  check_refusal(run(resume + Words{"--moments", "fp32"}), 2,
                "--moments is fp32, but the training to go on with has bf16",
                "leave the option out");
  const Outcome inspected = run({"store", "inspect", folder / "run", "--json"});
  INFO(inspected.err);
  CHECK(inspected.json()["stores"][0]["workload"]["moments"] == "bf16");
  const Outcome rest = run(resume + Words{"--json", "--policy", "fuyou"});
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(rest.json_lines().front()["workload"]["moments"] == "bf16");
  CHECK(rest.json_lines().back()["weights_hash"] == whole.json_lines().back()["weights_hash"]);
}

// gpt-13b keeps its state on the drives: 12 bytes a parameter read and written each step, with
// parameters of 2; with bf16 moments 8. What is written is (8 + 2) / (12 + 2) of it, but for the
// embedding's parameters, which rest on the GPU.
TEST_CASE("estimate, simulate and compare take --moments: 8 bytes a parameter, not 12") {
  const Words problem = {"--model", "gpt-13b",       "--machine", "rtx4090-12ssd", "--batch",
                         "16",      "--micro-batch", "16",        "--policy",      "fuyou"};
  const json wide = result(Words{"simulate"} + problem);
  const json narrow = result(Words{"simulate"} + problem + bf16);
  CHECK(wide["workload"]["moments"] == "fp32");
  CHECK(narrow["workload"]["moments"] == "bf16");
  const double before = wide["ssd_bytes_written_per_step"],
               after = narrow["ssd_bytes_written_per_step"];
  CHECK(after / before == Approx(10.0 / 14).epsilon(0.01));
  CHECK(narrow["step_seconds"] < wide["step_seconds"]);
  // What is written less is 4 bytes for each of 12.9 billion parameters.
  CHECK((before - after) / 4 == Approx(12.9e9).epsilon(0.02));
  // All of the state, once more for commits: 4 bytes less in each of both copies.
  const json store = result(Words{"estimate"} + problem)["memory"]["ssd"],
             less = result(Words{"estimate"} + problem + bf16)["memory"]["ssd"];
  CHECK(less["peak_bytes"] < store["peak_bytes"]);
  const Outcome estimate = run(Words{"estimate"} + problem + bf16);
  CHECK_THAT(estimate.out, Catch::Contains("bf16 moments"));
  const Words compared = {"compare", "--model", "gpt-tiny", "--machine", "testbed", "--batch", "4"};
  CHECK_THAT(run(compared + bf16).out, Catch::Contains("bf16 moments"));
  CHECK_THAT(run(compared).out, !Catch::Contains("moments"));
}

TEST_CASE("a sweep over moments has a row for each, and writes less with bf16") {
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "s.toml",
      "name = \"moments\"\n[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\n"
      "batch = 4\npolicy = \"zero-infinity\"\n[[axis]]\nmoments = [\"fp32\", \"bf16\"]\n");
  const Outcome outcome = run({"sweep", file, "--out", folder / "out"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const auto lines = lines_of(read_file(fs::path(folder / "out") / "results.csv"));
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[1], Catch::StartsWith("fp32,"));
  CHECK_THAT(lines[2], Catch::StartsWith("bf16,"));
  CHECK(lines[1].substr(5) != lines[2].substr(5));
}
