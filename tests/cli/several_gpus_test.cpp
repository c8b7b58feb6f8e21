// Machines of several GPUs on the command line: --all-ranks, --ranks, and a sweep over them.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

// 13 billion parameters over the four GPUs of a server, whose drives they share.
const Words four_gpus = {"--model",       "gpt-13b",
                         "--machine",     "a100-80gb-4gpu",
                         "--policy",      "zero-infinity:parameters=host",
                         "--batch",       "16",
                         "--micro-batch", "4"};

json simulated(const Words& more) {
  const Outcome outcome = run(Words{"simulate", "--json"} + four_gpus + more);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json();
}

}  // namespace

TEST_CASE(
    "simulate --all-ranks holds every GPU of the machine against the one that stands for all") {
  const json answer = simulated({"--all-ranks"});
  REQUIRE(answer["all_ranks"]["step_seconds"].size() == 4);
  for (const json& seconds : answer["all_ranks"]["step_seconds"])
    CHECK(seconds.get<double>() == Approx(answer["step_seconds"].get<double>()).epsilon(0.01));
  CHECK(answer["all_ranks"].contains("as_one"));
  CHECK_FALSE(simulated({}).contains("all_ranks"));
  const Outcome text = run(Words{"simulate", "--all-ranks"} + four_gpus);
  CHECK(text.exit_code == 0);
  CHECK_THAT(text.out, Catch::Contains("all 4 together: "));
}

TEST_CASE("simulate --ranks takes fewer GPUs than the machine has") {
  const json all = simulated({}), two = simulated({"--ranks", "2"});
  CHECK(simulated({"--ranks", "4"})["step_seconds"] == all["step_seconds"]);
  // The same batch by half as many.
  CHECK(two["step_seconds"].get<double>() > 1.1 * all["step_seconds"].get<double>());
  CHECK(simulated({"--ranks", "2", "--all-ranks"})["all_ranks"]["step_seconds"].size() == 2);
}

TEST_CASE("simulate --all-ranks is refused where there is one rank, or too many to hold") {
  const Outcome one =
      run(Words{"simulate", "--machine", "testbed", "--policy", "resident", "--all-ranks"} +
          tiny_problem());
  CHECK(one.exit_code == 2);
  CHECK_THAT(one.err, Catch::Contains("has one rank") && Catch::Contains("--set cluster.gpus=4"));
  const Outcome many =
      run(Words{"simulate", "--all-ranks"} + four_gpus +
          Words{"--set", "cluster.nodes=2048", "cluster.nic=100GB/s", "--batch", "32768"});
  INFO(many.err);
  CHECK(many.exit_code == 2);
  CHECK_THAT(many.err, Catch::Contains("8192 ranks of") && Catch::Contains("take fewer ranks"));
}

TEST_CASE("A sweep over ranks has the rows that simulate has") {
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "s.toml",
      "[fixed]\nmodel = \"gpt-13b\"\nmachine = \"a100-80gb-4gpu\"\nbatch = 16\nmicro_batch = 4\n"
      "[[axis]]\npolicy = [\"zero-infinity:parameters=host\"]\n[[axis]]\nranks = [1, 2, 3, 4]\n");
  const std::string out = folder / "out";
  const Outcome outcome = run({"sweep", file, "--out", out, "--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const std::vector<std::string> rows =
      lines_of(read_file(std::filesystem::path(out) / "results.csv"));
  REQUIRE(rows.size() == 5);
  CHECK_THAT(rows[3], Catch::Contains("3 ranks do not share a batch of 16 alike"));
  for (const int ranks : {1, 2, 4}) {
    INFO(rows[static_cast<std::size_t>(ranks)]);
    const json one = simulated({"--ranks", std::to_string(ranks)});
    for (const char* key : {"step_seconds", "tokens_per_second"})
      CHECK(rows[static_cast<std::size_t>(ranks)].find("," + one[key].dump() + ",") !=
            std::string::npos);
  }
}

TEST_CASE("What commits write, and what is assumed, is of all GPUs of the computer") {
  const Words words = Words{"simulate", "--model",    "gpt-13b", "--machine", "a100-80gb-4gpu",
                            "--policy", "1f1b",       "--batch", "8",         "--micro-batch",
                            "1",        "--pipeline", "4"};
  const json answer = run(words + Words{"--json"}).json();
  const double of_stage = answer["durability"]["bytes_copied_per_commit"];
  const double of_all = answer["wear"]["commit_bytes_per_step"].get<double>() *
                        answer["durability"]["commit_every"].get<double>();
  CHECK(of_all > 3 * of_stage);
  const Outcome text = run(words);
  const std::string marker = "each writes ";
  const std::size_t at = text.out.find(marker);
  REQUIRE(at != std::string::npos);
  CHECK(1e9 * std::stod(text.out.substr(at + marker.size())) == Approx(of_all).epsilon(0.001));
  const json ranks = simulated({"--sensitivity"});
  bool is_told = false;
  for (const json& value : ranks["assumed"]["values"]) {
    if (value["keys"][0] != "host.bandwidth") continue;
    is_told = true;
    CHECK(value["value"] == "300.0 GB/s");  // of the file, not of a rank
  }
  CHECK(is_told);
}

TEST_CASE("Ranks beside stages are refused with what can be done") {
  const Outcome both = run(Words{"simulate"} + four_gpus +
                           Words{"--ranks", "4", "--pipeline", "4", "--batch", "16"});
  CHECK(both.exit_code == 2);
  CHECK_THAT(both.err, Catch::Contains("leave --ranks out, or --pipeline"));
}
