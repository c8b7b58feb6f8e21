// `spillway fit`: what fits, by policy, held against what `estimate` says of it.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

const Words tiny = {"--machine", "testbed", "--model", "gpt-tiny", "--sequence", "16"};

Words fit(const Words& words) { return Words{"fit"} + tiny + words; }
json answer(const Words& words) {
  const Outcome outcome = run(fit(words) + Words{"--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json();
}
int estimate(const Words& words) { return run(Words{"estimate"} + tiny + words).exit_code; }

}  // namespace

TEST_CASE("The least memory of each kind fits, and the next smaller size does not") {
  const Words policy = {"--policy", "greedysnake", "--batch", "4"};
  const json found = answer(policy + Words{"--least", "gpu", "--least", "host", "--least", "ssd"});
  CHECK(found["question"] == "fit");
  REQUIRE(found["policies"].size() == 1);
  const json& row = found["policies"][0];
  CHECK(row["policy"] == "greedysnake");
  CHECK_FALSE(row.contains("largest_model"));
  CHECK_FALSE(row.contains("largest_batch"));
  const auto with = [&](const std::string& tier, const json& bytes) {
    const std::string size = bytes.dump() + "B";
    return policy + (tier == "ssd" ? Words{"--set", "ssd.capacity=" + size}
                                   : Words{"--" + tier + "-memory", size});
  };
  for (const auto& [tier, least] : row["least_memory"].items()) {
    INFO(tier << " " << least.dump());
    REQUIRE(least["bytes"] > 0);
    CHECK(least["cut_short"] == false);
    CHECK(least["more_than_there_is"] == false);
    CHECK(least["too_little_bytes"] < least["bytes"]);
    // In three digits.
    CHECK(least["bytes"].get<double>() <= 1.0101 * least["too_little_bytes"].get<double>());
    CHECK(estimate(with(tier, least["bytes"])) == 0);
    CHECK(estimate(with(tier, least["too_little_bytes"])) == 3);
  }
}

TEST_CASE("The largest batch is one that estimate takes, with the throughput that it shows") {
  const Words policy = {"--policy",   "greedysnake", "--host-memory", "16MB",
                        "--sequence", "64",          "--set",         "ssd.capacity=30MB"};
  const json found = answer(policy + Words{"--largest", "batch"})["policies"][0]["largest_batch"];
  REQUIRE(found["batch"].get<int>() >= 1);
  const json same = run(Words{"estimate"} + tiny + policy +
                        Words{"--policy", found["policy"], "--batch", found["batch"].dump(),
                              "--micro-batch", found["micro_batch"].dump(), "--json"})
                        .json();
  CHECK(same["tokens_per_second"] == found["tokens_per_second"]);
  CHECK(same["step_seconds"] == found["step_seconds"]);
}

TEST_CASE("The largest model is one that estimate takes, and with a layer more it does not fit") {
  const Words small = {"--gpu-memory",      "8MB",      "--host-memory", "20MB",    "--set",
                       "ssd.capacity=60MB", "--policy", "zero-infinity", "--batch", "2"};
  const json found = answer(small + Words{"--largest", "model"})["policies"][0]["largest_model"];
  const int layers = found["layers"];
  REQUIRE(layers >= 1);
  CHECK_FALSE(found["full"].empty());
  const auto with = [&](int count) {
    return estimate(small + Words{"--set", "model.layers=" + std::to_string(count)});
  };
  CHECK(with(layers) == 0);
  CHECK(with(layers + 1) == 3);
}

TEST_CASE("A micro-batch that is set holds for every answer") {
  const json row = answer({"--policy", "resident", "--micro-batch", "3"})["policies"][0];
  CHECK(row["largest_batch"]["micro_batch"] == 3);
  CHECK(row["largest_batch"]["batch"].get<int>() % 3 == 0);
  CHECK(row["largest_model"]["micro_batch"] == 3);
  CHECK(row["least_memory"]["gpu"]["micro_batch"] == 3);
}

TEST_CASE("The table has a row for each policy, and says what its cells mean") {
  const Words asked = {"--policy", "zero-infinity", "--policy", "resident", "--batch",
                       "2",        "--gpu-memory",  "6MB"};
  const Outcome outcome = run(fit(asked));
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  for (const char* words :
       {"what fits of gpt-tiny on testbed", "2 sequences of 16 tokens a step", "largest model",
        "largest batch", "least memory", "\nzero-infinity ", "\nresident ", "in three digits",
        "*: more than the machine has", "set by hand: gpu_memory=6MB"})
    CHECK_THAT(outcome.out, Catch::Contains(words));
  const Outcome one = run(fit(asked + Words{"--least", "host"}));
  CHECK_THAT(one.out, Catch::Contains("least memory") && !Catch::Contains("largest"));
  // What all policies are when none is named: those of one rank, and the same bytes every time.
  const Words all = {"--batch", "2", "--least", "gpu"};
  const Outcome first = run(fit(all)), second = run(fit(all));
  CHECK(first.out == second.out);
  for (const char* policy : {"\nresident ", "\nfuyou:swap=auto ", "\nspillway "})
    CHECK_THAT(first.out, Catch::Contains(policy));
  CHECK_THAT(first.out, !Catch::Contains("fsdp") && Catch::Contains("nobody searched for"));
}

TEST_CASE("What fit cannot answer names what would do") {
  check_complaint(run(fit({"--largest", "cat"})), 2, "cat", "--help");
  check_complaint(run(fit({"--least", "nic"})), 2, "nic", "--help");
  check_complaint(run(fit({"--largest", "batch", "--batch", "4"})), 2,
                  "--batch 4: the batch is the answer", "leave it out");
  check_complaint(run(fit({"--policy", "nope"})), 2, "unknown policy 'nope'", "resident");
  check_complaint(run(Words{"fit", "--model", "gpt-tiny"}), 2, "--machine is required", "--help");
  for (const char* question : {"batch", "model"}) {
    const Outcome outcome =
        run(fit({"--largest", question, "--policy", "zero-infinity", "--gpu-memory", "100KB"}));
    check_complaint(outcome, 3, "does not fit", "would make it fit");
    CHECK_THAT(outcome.out, Catch::Contains("none") && Catch::Contains("gpu"));
  }
}
