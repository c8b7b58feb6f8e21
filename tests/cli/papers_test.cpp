// `spillway papers`: its tables, its JSON, and what it refuses.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;

namespace {

// A paper of one cheap point, on a machine that is built in.
const char* const paper = R"([paper]
name = "mine"
title = "Mine"
citation = "nobody"
machine = "rtx4090-12ssd"
constants = "none"
[[experiment]]
name = "throughput"
title = "Small"
figure = "Fig. 1"
quantity = "tokens_per_second"
model = "gpt2-124m"
axis = "batch"
values = [1, 2]
[[experiment.system]]
name = "theirs"
policy = "resident"
published = [1000, "does not fit"]
)";

}  // namespace

TEST_CASE("cli papers: a file of one's own is run, and the table says published and simulated") {
  const TemporaryFolder folder;
  const Outcome outcome = run({"papers", folder.write("mine.toml", paper)});
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("Fig. 1") && Catch::Contains("theirs") &&
                              Catch::Contains("1000") && Catch::Contains("not as published") &&
                              Catch::Contains("mean error") &&
                              Catch::Contains("\n  theirs is resident"));
}

TEST_CASE("cli papers: --json is one object with every point, and --markdown a document") {
  const TemporaryFolder folder;
  const std::string document = folder / "accuracy.md";
  const Outcome outcome =
      run({"papers", folder.write("mine.toml", paper), "--json", "--markdown", document});
  REQUIRE(outcome.exit_code == 0);
  const json result = outcome.json();
  const json& system = result["papers"][0]["experiments"][0]["systems"][0];
  CHECK(system["policy"] == "resident");
  REQUIRE(system["points"].size() == 2);
  const json& first = system["points"][0];
  CHECK(first["published"] == 1000);
  CHECK(first["error"].get<double>() == Approx(first["simulated"].get<double>() / 1000 - 1));
  CHECK(system["points"][1]["fits"] == true);
  CHECK(system["points"][1]["fits_published"] == false);
  CHECK(system["predictions"] == 1);
  CHECK(first["closed_form"].get<double>() > 0);
  CHECK(first["margin"]["tier"] == "gpu");
  CHECK_THAT(read_file(document), Catch::StartsWith("# How far the simulator is off") &&
                                      Catch::Contains("* theirs: `resident`") &&
                                      Catch::Contains("gpu: "));
}

TEST_CASE(
    "cli papers: a name that is not there and a document that cannot be written are refused") {
  check_refusal(run({"papers", "fuyuo"}), 2, "unknown paper fuyuo", "fuyou");
  check_refusal(run({"papers", "--markdown", "/no/such/folder/x.md"}), 2, "--markdown",
                "create it");
  const Outcome list = run({"papers", "--list"});
  CHECK(list.exit_code == 0);
  CHECK_THAT(list.out, Catch::Contains("fuyou") && Catch::Contains("ICDE 2025"));
}

TEST_CASE("cli papers: --refit and --leave-one-out fit the constants that a file declares") {
  const TemporaryFolder folder;
  const std::string constants = R"([[constant]]
key = "machine.gpu.flops"
kind = "continuous"
seen = ["throughput"]
bounds = ["16.035TFLOPS", "1603.5TFLOPS"]
)";
  const std::string file = folder.write("mine.toml", std::string(paper) + constants);
  const json refit = run({"papers", "--refit", "--json", file}).json()["refits"][0];
  CHECK(refit["name"] == "mine");
  CHECK(refit["constants"][0]["key"] == "machine.gpu.flops");
  CHECK(refit["constants"][0]["factor"].get<double>() < 1);
  CHECK(refit["mean_error"].get<double>() < refit["mean_error_before"].get<double>());
  const json left_out =
      run({"papers", "--leave-one-out", "--json", file}).json()["papers"][0]["leave_one_out"];
  CHECK(left_out["folds"][0]["name"] == "Fig. 1");
  check_refusal(run({"papers", "--refit", folder.write("none.toml", paper)}), 2,
                "no constants to fit", "[[constant]]");
}
