// meshes: AMSP's planner as a table and as JSON, and what is refused.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

Words four_servers(const Words& more) {
  return Words{"meshes",       "--model", "llama-7b",        "--machine",
               "a800-cluster", "--set",   "cluster.nodes=4", "model.positions=4096",
               "--batch",      "1024",    "--micro-batch",   "1",
               "--sequence",   "4096"} +
         more;
}

}  // namespace

TEST_CASE("meshes shows the least communication first, with what it is made of") {
  const Outcome outcome = run(four_servers({"--json", "--reserve", "25GB"}));
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const json answer = outcome.json();
  CHECK(answer["ranks"] == "8x4");
  CHECK(answer["micro_batches"] == 32);
  REQUIRE(answer["meshes"].size() == 10);
  const json& first = answer["meshes"][0];
  CHECK(first["parameters"] == "1x1");
  CHECK(first["gradients"] == "1x1");
  CHECK(first["optimizer_state"] == "8x1");
  double before = 0;
  for (const json& one : answer["meshes"]) {
    const double seconds = one["communication_seconds"];
    CHECK(seconds >= before);
    CHECK(seconds ==
          Approx(one["parameters_seconds"].get<double>() + one["gradients_seconds"].get<double>() +
                 one["sync_seconds"].get<double>() + one["spread_seconds"].get<double>()));
    before = seconds;
  }
  const Outcome table = run(four_servers({"--top", "1"}));
  CHECK(table.exit_code == 0);
  CHECK(table.out.find("T_os1") != std::string::npos);
}

TEST_CASE("meshes: nothing fits, or there is nothing to share") {
  CHECK(run(four_servers({"--reserve", "80GB"})).exit_code == 3);
  const Outcome alone = run(Words{"meshes", "--machine", "testbed"} + tiny_problem());
  CHECK(alone.exit_code == 2);
  CHECK(alone.err.find("one rank has nothing to share") != std::string::npos);
  CHECK(run(four_servers({"--reserve", "25"})).exit_code == 2);
}
