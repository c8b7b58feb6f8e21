// `train` holds its first steps against the prediction.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;

namespace {

// A machine whose drives are said to be far slower than any drive is.
Words on_slow_drives(const TemporaryFolder& folder) {
  return tiny_training(folder) +
         Words{"--steps",         "12",    "--machine",      "testbed", "--set",
               "ssd.write=2MB/s", "--set", "ssd.total=2MB/s"};
}

}  // namespace

TEST_CASE("train says that the machine file no longer fits, which lane, and what to do") {
  const TemporaryFolder folder;
  const Outcome text = run(on_slow_drives(folder));
  INFO(text.err);
  REQUIRE(text.exit_code == 0);
  CHECK_THAT(text.out, Catch::Contains("differs most") && Catch::Contains("spillway calibrate"));
}

TEST_CASE("The end event says whether the prediction held, where there was one") {
  const TemporaryFolder folder;
  const Outcome outcome = run(on_slow_drives(folder) + Words{"--json"});
  REQUIRE(outcome.exit_code == 0);
  const nlohmann::json end = outcome.json_lines().back();
  REQUIRE(end.contains("prediction"));
  const nlohmann::json& prediction = end["prediction"];
  CHECK(prediction["holds"] == false);
  CHECK(prediction["steps"].get<int>() >= 4);
  CHECK(prediction["measured_step_seconds"].get<double>() <
        prediction["predicted_step_seconds"].get<double>());
  CHECK(prediction["lane_predicted_seconds"].get<double>() >
        prediction["lane_measured_seconds"].get<double>());
  const TemporaryFolder other;
  const nlohmann::json few = run(tiny_training(other) + Words{"--json"}).json_lines().back();
  CHECK_FALSE(few.contains("prediction"));
}

TEST_CASE(
    "A retuned training goes on with a plan for the machine as it is, and changes no number") {
  const TemporaryFolder folder, other;
  const Outcome outcome = run(on_slow_drives(folder) + Words{"--policy", "fuyou", "--micro-batch",
                                                             "1", "--retune", "--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  std::vector<nlohmann::json> starts, retunes;
  for (const nlohmann::json& event : outcome.json_lines()) {
    if (event["event"] == "start") starts.push_back(event);
    if (event["event"] == "retune") retunes.push_back(event);
  }
  REQUIRE(starts.size() == 2);
  REQUIRE(retunes.size() == 1);
  CHECK(starts[0]["policy"].get<std::string>().rfind("fuyou", 0) == 0);
  CHECK(starts[1]["policy"] != starts[0]["policy"]);
  CHECK(starts[1]["predicted_step_seconds"].get<double>() <
        starts[0]["predicted_step_seconds"].get<double>());
  CHECK(retunes[0]["step"].get<int>() >= 4);
  CHECK(retunes[0]["step"].get<int>() < 12);
  CHECK(retunes[0]["prediction"]["holds"] == false);
  const Outcome resident = run(tiny_training(other) + Words{"--steps", "12", "--policy", "resident",
                                                            "--micro-batch", "1", "--json"});
  REQUIRE(resident.exit_code == 0);
  CHECK(outcome.json_lines().back()["weights_hash"] ==
        resident.json_lines().back()["weights_hash"]);
}

TEST_CASE("Retuning needs commits to go on from") {
  const TemporaryFolder folder;
  check_refusal(run(on_slow_drives(folder) + Words{"--retune", "--durability", "off"}), 2,
                "--retune goes on from a commit", "--durability");
}
