// Training of adapters and of last layers beside frozen weights, as a user does it.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

// A model's folder of random weights, drawn from `seed`.
std::string base(const TemporaryFolder& folder, const std::string& name, const std::string& seed,
                 const std::string& model = "gpt-tiny") {
  REQUIRE(run(tiny_training(folder) +
              Words{"--model", model, "--run", folder / ("of-" + name), "--seed", seed, "--quiet"})
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

TEST_CASE("an option for frozen weights is refused where nothing is frozen") {
  const TemporaryFolder folder;
  check_refusal(run(tiny_training(folder) + Words{"--frozen-weights", "store"}), 2,
                "--frozen-weights store: all of the model is trained", "--lora rank=16");
  CHECK_FALSE(fs::exists(folder / "run"));
}

TEST_CASE("what is read in place takes no space of the drives, and its buffer is of the limit",
          "[store]") {
  const TemporaryFolder folder;
  base(folder, "base", "1", "llama-tiny");
  const std::string policy = "greedysnake:parameters_ssd=1,optimizer_ssd=0.5,alpha=0";
  const Words how = {"--lora", "rank=2", "--policy", policy, "--host-memory", "64MB"};
  const auto events = [&](const std::string& name, const Words& more) {
    const Outcome outcome = run(training(folder, name, how + more));
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return outcome.json_lines();
  };
  const std::vector<json> in_place = events("in-place", {}),
                          copied = events("copied", {"--frozen-weights", "store"});
  const json &first = in_place.front(), &other = copied.front();
  const auto bytes = first["frozen_weights"]["in_place_bytes"].get<std::int64_t>();
  REQUIRE(bytes > 0);
  CHECK(other["frozen_weights"].contains("copied_bytes"));
  const auto less = [&](const char* table, const char* key) {
    return other[table][key].get<std::int64_t>() - first[table][key].get<std::int64_t>();
  };
  CHECK(less("durability", "store_bytes") == bytes);
  CHECK(less("wear", "run_bytes") == bytes);  // that are not written at the start
  CHECK(other["memory"]["ssd"]["peak_bytes"].get<std::int64_t>() -
            first["memory"]["ssd"]["peak_bytes"].get<std::int64_t>() ==
        bytes);
  const auto buffer = first["frozen_weights"]["memory_bytes"].get<std::int64_t>();
  CHECK(first["memory"]["host"]["capacity_bytes"] == 64'000'000 - buffer);
  CHECK(other["memory"]["host"]["capacity_bytes"] == 64'000'000);
  CHECK(in_place.back()["weights_hash"] == copied.back()["weights_hash"]);
  // A question about the folder says the same, and counts a copy where there are no weights.
  fs::create_directory(folder / "shape");
  fs::copy(folder / "base/config.json", folder / "shape/config.json");
  const auto asked = [&](const std::string& model) {
    return run({"estimate", "--model", folder / model, "--machine", "rtx4090-2ssd", "--precision",
                "fp32", "--lora", "rank=2", "--policy", policy, "--json"})
        .json()["memory"]["ssd"]["peak_bytes"]
        .get<std::int64_t>();
  };
  CHECK(asked("shape") - asked("base") == bytes);
}
