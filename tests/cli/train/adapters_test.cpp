// Training of adapters and of last layers beside frozen weights, as a user does it.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

// A model's folder of random weights, drawn from `seed`.
std::string base(const TemporaryFolder& folder, const std::string& name, const std::string& seed) {
  REQUIRE(run(tiny_training(folder) +
              Words{"--run", folder / ("of-" + name), "--seed", seed, "--quiet"})
              .exit_code == 0);
  REQUIRE(run({"export", folder / ("of-" + name), "--out", folder / name}).exit_code == 0);
  return folder / name;
}

Words training(const TemporaryFolder& folder, const std::string& run, const Words& how) {
  return tiny_training(folder) +
         Words{"--model", folder / "base", "--run", folder / run, "--json"} + how;
}

json ran(const Words& arguments) {
  const Outcome outcome = run(arguments);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json_lines().back();
}

void done(const Words& arguments) {
  const Outcome outcome = run(arguments);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
}

}  // namespace

TEST_CASE("a run of adapters goes on beside its frozen weights, and beside no others", "[store]") {
  const TemporaryFolder folder;
  base(folder, "base", "1");
  base(folder, "other", "2");
  const Words lora = {"--lora", "rank=2,dropout=0.1"};
  const json whole = ran(training(folder, "whole", lora + Words{"--steps", "4"}));
  ran(training(folder, "run", lora + Words{"--steps", "2"}));
  const Words resume = {"train", "--resume", "--run", folder / "run", "--steps", "4", "--json"};
  const Outcome refused = run(resume + Words{"--model", folder / "other"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("are not those that the run began with") != std::string::npos);
  fs::rename(folder / "base", folder / "moved");
  const Outcome missing = run(resume);
  CHECK(missing.exit_code == 2);
  CHECK(missing.err.find("--model DIR") != std::string::npos);
  const json tail = ran(resume + Words{"--model", folder / "moved"});
  CHECK(tail["weights_hash"] == whole["weights_hash"]);
  CHECK(tail["final_loss"] == whole["final_loss"]);
  CHECK(fs::exists(folder / "run/adapter_model.safetensors"));
  CHECK_FALSE(fs::exists(folder / "run/model.safetensors"));
}

TEST_CASE("adapters that are exported, merged and trained from are the same", "[store]") {
  const TemporaryFolder folder;
  base(folder, "base", "1");
  ran(training(folder, "run", {"--lora", "rank=2", "--learning-rate", "0.1"}));
  done({"export", folder / "run", "--out", folder / "adapter"});
  CHECK(read_file(folder / "adapter/adapter_model.safetensors") ==
        read_file(folder / "run/adapter_model.safetensors"));
  done({"export", folder / "run", "--merge", "--out", folder / "merged", "--json"});
  done({"merge", "--model", folder / "base", "--adapter", folder / "adapter", "--out",
        folder / "again"});
  CHECK(read_file(folder / "again/model.safetensors") ==
        read_file(folder / "merged/model.safetensors"));
  CHECK(read_file(folder / "again/model.safetensors") !=
        read_file(folder / "base/model.safetensors"));
  ran(training(folder, "next",
               {"--adapter", folder / "adapter", "--learning-rate", "0", "--weight-decay", "0"}));
  CHECK(read_file(folder / "next/adapter_model.safetensors") ==
        read_file(folder / "adapter/adapter_model.safetensors"));
  const Outcome both =
      run(training(folder, "both", {"--adapter", folder / "adapter", "--lora", "rank=2"}));
  CHECK(both.exit_code == 2);
  CHECK(both.err.find("--lora and --adapter") != std::string::npos);
}

TEST_CASE("the last layers are trained, and the frozen ones exported as they were", "[store]") {
  const TemporaryFolder folder;
  base(folder, "base", "1");
  ran(training(folder, "run", {"--train-layers", "1", "--learning-rate", "0"}));
  CHECK(read_file(folder / "run/model.safetensors") ==
        read_file(folder / "base/model.safetensors"));
  done({"export", folder / "run", "--out", folder / "out"});
  CHECK(read_file(folder / "out/model.safetensors") ==
        read_file(folder / "base/model.safetensors"));
  CHECK(run(training(folder, "none", {"--train-layers", "0"})).exit_code == 2);
  CHECK(run({"export", folder / "run", "--merge", "--out", folder / "x"}).exit_code == 2);
}
