// `spillway compare`: which comparison it is, and who wins it.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

Words compare(const Words& words) {
  return Words{"compare", "--machine", "testbed"} + tiny_problem() + words;
}
json table(const Words& words) {
  const Outcome outcome = run(compare(words) + Words{"--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json();
}

const Words two = {"--policy", "zero-infinity", "--policy", "zero-offload"};

}  // namespace

TEST_CASE("The heading says which comparison it is") {
  CHECK_THAT(run(compare({})).out, Catch::Contains("compared as published: each policy at its") &&
                                       Catch::Contains("all as run by spillway") &&
                                       Catch::Contains("fastest as published"));
  CHECK_THAT(run(compare(two)).out,
             Catch::Contains("compared as named") && Catch::Contains("fastest as named"));
  CHECK_THAT(run(compare(two + Words{"--recompute", "full", "--framework", "deepspeed-0.9", "--set",
                                     "gpu.memory=16GB", "host.memory=64GB"}))
                 .out,
             Catch::Contains("all as run by deepspeed-0.9, with recompute=full") &&
                 Catch::Contains("fastest as named with recompute=full"));
  const Outcome best = run(compare(two + Words{"--best", "--micro-batch", "1"}));
  CHECK_THAT(best.out, Catch::Contains("compared at their best") &&
                           Catch::Contains("in micro-batches of 1") &&
                           Catch::Contains("fastest at its best"));
}

TEST_CASE("Rows as fast as the fastest are said to be so") {
  // With so little to update, both do the same.
  const Outcome twice =
      run(compare({"--policy", "zero-offload", "--policy", "deep-optimizer-states"}));
  REQUIRE(twice.exit_code == 0);
  INFO(twice.out);
  CHECK_THAT(twice.out, Catch::Contains("fastest as named"));
  CHECK_THAT(twice.out, Catch::Contains("as fast as the fastest, to a thousandth"));
}

TEST_CASE("A row alone is no winner, in text or in JSON") {
  const Words alone = {"--policy", "zero-infinity"};
  CHECK(table(alone)["fastest"].is_null());
  CHECK(table(alone)["policies"].size() == 1);
  CHECK_THAT(run(compare(alone)).out, !Catch::Contains("<-"));
  // The other does not fit.
  const Words one_fits = {"--policy",      "resident",     "--policy",
                          "zero-infinity", "--gpu-memory", "6MB"};
  const json found = table(one_fits);
  CHECK(found["policies"][0]["fits"] == false);
  CHECK(found["fastest"].is_null());
  CHECK_THAT(run(compare(one_fits)).out,
             !Catch::Contains("<- fastest") && Catch::Contains("none is called the fastest"));
}

TEST_CASE("What a search found does not win against policies as published") {
  const json found = table({});
  CHECK(found["comparison"]["settings"] == "published");
  REQUIRE(found["fastest"].is_string());
  double least = 1e9;
  std::string fastest;
  for (const json& row : found["policies"]) {
    const json& compared = row["compared"];
    CHECK(compared["competes"] == (row["fits"].get<bool>() && compared["settings"] == "published"));
    if (!compared["competes"].get<bool>() || row["step_seconds"].get<double>() >= least) continue;
    least = row["step_seconds"];
    fastest = row["policy"];
  }
  CHECK(found["fastest"] == fastest);
  CHECK(found["auto"].is_string());
  CHECK(table(two)["auto"].is_null());
}

TEST_CASE("At its best each policy shows settings that estimate takes, at the step it predicts") {
  const json named = table(two), best = table(two + Words{"--best"});
  CHECK(best["comparison"]["settings"] == "best");
  CHECK(best["comparison"]["settings_tried"] > 20);
  REQUIRE(best["policies"].size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const json& row = best["policies"][i];
    CHECK(row["compared"]["settings"] == "search");
    CHECK(row["step_seconds"] <= named["policies"][i]["step_seconds"]);
    const json same = run(Words{"estimate", "--machine", "testbed", "--json"} + tiny_problem() +
                          Words{"--policy", row["policy"], "--micro-batch",
                                row["workload"]["micro_batch"].dump()})
                          .json();
    CHECK(same["step_seconds"] == row["step_seconds"]);
  }
  CHECK(table(two + Words{"--best"})["fastest"] == best["fastest"]);
}

TEST_CASE("With one recomputation for all, a row that cannot follow is named and left out") {
  const Words asked = {"--policy", "resident",      "--policy",   "greedysnake",
                       "--policy", "zero-infinity", "--recompute"};
  const json off = table(asked + Words{"off"});
  CHECK(off["comparison"]["recomputation"] == "off");
  CHECK(off["policies"][0]["compared"]["follows"] == true);
  for (const std::size_t row : {std::size_t{1}, std::size_t{2}}) {
    CHECK(off["policies"][row]["compared"]["follows"] == false);
    CHECK(off["policies"][row]["compared"]["recomputation"] == "full");
  }
  CHECK(off["fastest"].is_null());
  CHECK_THAT(run(compare(asked + Words{"off"})).out,
             Catch::Contains("not compared: it recomputes whole layers"));
  const json full = table(asked + Words{"full"});
  for (const json& row : full["policies"]) {
    CHECK(row["compared"]["follows"] == true);
    CHECK(row["hardware_tflops"].get<double>() > 1.1 * row["model_tflops"].get<double>());
  }
  CHECK(full["fastest"].is_string());
  check_complaint(run(compare({"--recompute", "half"})), 2, "half", "--help");
  check_complaint(run(compare({"--policy", "fuyou:recompute=needed", "--recompute", "full"})), 2,
                  "all are to have recompute=full", "--recompute needed");
}
