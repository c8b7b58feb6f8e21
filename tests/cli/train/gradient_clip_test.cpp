// --gradient-clip and --on-nonfinite: in training, and in what a simulation says they cost.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

// Trains anew in the same folder.
Outcome train(const TemporaryFolder& folder, const Words& arguments) {
  fs::remove_all(folder / "run");
  return run(tiny_training(folder) + Words{"--json", "--no-export"} + arguments);
}

std::vector<json> steps_of(const Outcome& outcome) {
  std::vector<json> steps;
  for (const json& event : outcome.json_lines()) {
    if (event["event"] == "step") steps.push_back(event);
  }
  return steps;
}

json weights_hash(const Outcome& outcome) {
  REQUIRE(outcome.exit_code == 0);
  return outcome.json_lines().back()["weights_hash"];
}

}  // namespace

TEST_CASE("train --gradient-clip clips, alike under two policies, and the trace can be validated") {
  const TemporaryFolder folder;
  const json unclipped = weights_hash(train(folder, {"--steps", "3"}));
  for (const char* clip : {"global=0.01", "layer=0.01"}) {
    INFO(clip);
    const Words options = {"--steps", "3", "--gradient-clip", clip, "--machine", "testbed"};
    const Outcome one = train(folder, options + Words{"--policy", "zero-infinity"});
    INFO(one.err);
    CHECK(one.json_lines().front()["workload"]["gradient_clip"] == clip);
    const Outcome validated = run({"validate", folder / "run/trace.json.gz", "--json"});
    INFO(validated.err);
    REQUIRE(validated.exit_code == 0);
    CHECK(validated.json()["kinds"].contains("gradient_norm"));
    const Outcome other = train(folder, options + Words{"--policy", "fuyou"});
    CHECK(weights_hash(one) != unclipped);
    CHECK(weights_hash(one) == weights_hash(other));
    // Before clipping, and to the bit: the norm of one gradient, taken in one order.
    const std::vector<json> left = steps_of(one), right = steps_of(other);
    REQUIRE(left.size() == 3);
    for (std::size_t s = 0; s < 3; ++s) {
      CHECK(left[s]["grad_norm"] > 0.01);
      CHECK(left[s]["grad_norm"] == right[s]["grad_norm"]);
      CHECK_FALSE(left[s].contains("skipped"));
    }
  }
}

TEST_CASE("train --on-nonfinite: stop names the layer, skip leaves the update out and says so") {
  const TemporaryFolder folder;
  const Words diverging = {"--steps", "4", "--learning-rate", "1e30"};
  const Outcome stopped = train(folder, diverging);
  CHECK(stopped.exit_code == 1);
  CHECK_THAT(stopped.err, Catch::Contains("holds NaN or Inf at step 1") &&
                              Catch::Contains("the gradient of layer") &&
                              Catch::Contains("--learning-rate"));
  const Outcome skipped = train(folder, diverging + Words{"--on-nonfinite", "skip"});
  INFO(skipped.err);
  CHECK(skipped.json_lines().front()["workload"]["on_nonfinite"] == "skip");
  const std::vector<json> steps = steps_of(skipped);
  REQUIRE(steps.size() == 4);
  CHECK_FALSE(steps[0].contains("skipped"));
  for (std::size_t s = 1; s < 4; ++s) {
    CHECK(steps[s]["skipped"] == true);
    CHECK(steps[s]["layer"] == "layer 3");
    CHECK(steps[s]["grad_norm"].is_null());
    CHECK(steps[s]["loss"].is_null());
  }
  // The weights are those of the first step; so is the last loss there was.
  CHECK(skipped.json_lines().back()["skipped_steps"] == 3);
  CHECK(skipped.json_lines().back()["final_loss"] == steps[0]["loss"]);
  CHECK(weights_hash(skipped) ==
        weights_hash(train(folder, {"--steps", "1", "--learning-rate", "1e30"})));
}

TEST_CASE("simulate, estimate and compare take the options, and show what waiting costs") {
  const Words problem = {"--model", "gpt-13b", "--machine",     "rtx4090-12ssd",
                         "--batch", "16",      "--micro-batch", "16"};
  const auto simulated = [&](const Words& options) {
    const Outcome outcome =
        run(Words{"simulate", "--policy", "fuyou", "--json"} + problem + options);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return outcome.json();
  };
  const json off = simulated({}), layer = simulated({"--gradient-clip", "layer=1"}),
             global = simulated({"--gradient-clip", "global=1.0"}),
             skip = simulated({"--on-nonfinite", "skip"});
  CHECK(off["workload"]["gradient_clip"] == "off");
  CHECK(off["workload"]["on_nonfinite"] == "stop");
  CHECK(global["workload"]["gradient_clip"] == "global=1");
  CHECK(layer["step_seconds"].get<double>() >= 0.99 * off["step_seconds"].get<double>());
  CHECK(global["step_seconds"] > 1.05 * layer["step_seconds"].get<double>());
  CHECK(skip["step_seconds"] == global["step_seconds"]);
  CHECK(global["memory"]["host"]["peak_bytes"] > off["memory"]["host"]["peak_bytes"]);
  for (const char* command : {"estimate", "compare"}) {
    const Words policy = command == std::string("estimate") ? Words{"--policy", "fuyou"} : Words{};
    const Outcome outcome =
        run(Words{command, "--json"} + policy + problem + Words{"--gradient-clip", "global=1"});
    INFO(command << " " << outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK_THAT(outcome.out, Catch::Contains("\"gradient_clip\":") && Catch::Contains("global=1"));
  }
}

TEST_CASE("Clipping that is none is refused, wherever it is given") {
  for (const char* command : {"simulate", "train"}) {
    const Words common = {command, "--policy", "resident", "--machine", "testbed"};
    check_refusal(run(common + tiny_problem() + Words{"--gradient-clip", "1.0"}), 2,
                  "--gradient-clip 1.0: not off, global=LIMIT or layer=LIMIT", "global=1.0");
    check_refusal(run(common + tiny_problem() + Words{"--gradient-clip", "layer=-1"}), 2,
                  "--gradient-clip layer=-1: the limit is not a number above 0", "layer=1.0");
    check_refusal(run(common + tiny_problem() + Words{"--on-nonfinite", "warn"}), 2,
                  "--on-nonfinite warn: neither stop nor skip", "skip");
  }
}
