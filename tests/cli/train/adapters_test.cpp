// Training of adapters and of last layers beside frozen weights, as a user does it.
#include <catch2/catch.hpp>
#include <chrono>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

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
  exported_model(folder, "base", "1");
  exported_model(folder, "other", "2");
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
  // PEFT is told where the base is by now.
  CHECK(json::parse(read_file(folder / "run/adapter_config.json"))["base_model_name_or_path"] ==
        folder / "moved");
  CHECK(fs::exists(folder / "run/adapter_model.safetensors"));
  CHECK_FALSE(fs::exists(folder / "run/model.safetensors"));
}

TEST_CASE("adapters that are exported, merged and trained from are the same", "[store]") {
  const TemporaryFolder folder;
  exported_model(folder, "base", "1");
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

TEST_CASE("an export finds a base that was moved, and only the one that the run began with",
          "[store]") {
  const TemporaryFolder folder;
  exported_model(folder, "base", "1");
  exported_model(folder, "other", "2");
  ran(training(folder, "run",
               {"--lora", "rank=2", "--learning-rate", "0.1", "--keep", "1", "--keep-every", "1"}));
  const Words merge = {"export", folder / "run", "--merge", "--out"};
  done(merge + Words{folder / "before"});
  fs::rename(folder / "base", folder / "moved");
  const auto base_of = [&](const std::string& adapter) {
    return json::parse(read_file(fs::path(adapter) / "adapter_config.json"))
        ["base_model_name_or_"
         "path"];
  };
  // The committed state, a step that was kept, and the run's end.
  for (const Words& which : {Words{}, Words{"--step", "2"}, Words{"--gone"}}) {
    const bool gone = which == Words{"--gone"};
    if (gone) REQUIRE(run({"store", "remove", folder / "run"}).exit_code == 0);
    const Words step = gone ? Words{} : which;
    const std::string out = folder / ("out" + std::to_string(which.size()) + (gone ? "-gone" : ""));
    const Outcome missing = run(merge + Words{out} + step);
    CHECK(missing.exit_code == 2);
    CHECK(missing.err.find("are not in") != std::string::npos);
    const Outcome wrong = run(merge + Words{out, "--model", folder / "other"} + step);
    CHECK(wrong.exit_code == 2);
    CHECK(wrong.err.find("are not those that the run began with") != std::string::npos);
    const Outcome moved = run(merge + Words{out, "--model", folder / "moved"} + step);
    INFO(moved.err);
    REQUIRE(moved.exit_code == 0);
    CHECK(read_file(fs::path(out) / "model.safetensors") ==
          read_file(folder / "before/model.safetensors"));
    const std::string adapter = out + "-adapter";
    done(Words{"export", folder / "run", "--out", adapter, "--model", folder / "moved"} + step);
    CHECK(base_of(adapter) == folder / "moved");
    done(Words{"export", folder / "run", "--out", adapter + "-as-it-was"} + step);
    CHECK(base_of(adapter + "-as-it-was") == folder / "base");
    CHECK(
        run(Words{"export", folder / "run", "--out", folder / "x", "--model", folder / "nowhere"} +
            step)
            .exit_code == 2);
  }
  // What frozen-weights.json says of other weights is not believed.
  json origin = json::parse(read_file(folder / "run/frozen-weights.json"));
  origin["data"] = origin["data"].get<std::uint64_t>() + 1;
  folder.write("run/frozen-weights.json", origin.dump());
  const Outcome refused = run(merge + Words{folder / "y", "--model", folder / "moved"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("does not tell of the frozen weights") != std::string::npos);
  CHECK(run({"export", folder / "of-other", "--out", folder / "z", "--model", folder / "moved"})
            .exit_code == 2);
}

TEST_CASE("an export tells that it reads the base to know it", "[store]") {
  const TemporaryFolder folder;
  exported_model(folder, "base", "1");
  ran(training(folder, "run", {"--lora", "rank=2"}));
  fs::last_write_time(folder / "base/model.safetensors",
                      fs::file_time_type::clock::now() - std::chrono::hours(1));
  const Outcome exported = run({"export", folder / "run", "--merge", "--out", folder / "merged"});
  CHECK(exported.exit_code == 0);
  CHECK(exported.err.find("checking the frozen weights: ") != std::string::npos);
}

TEST_CASE("the last layers are trained, and the frozen ones exported as they were", "[store]") {
  const TemporaryFolder folder;
  exported_model(folder, "base", "1");
  ran(training(folder, "run", {"--train-layers", "1", "--learning-rate", "0"}));
  CHECK(read_file(folder / "run/model.safetensors") ==
        read_file(folder / "base/model.safetensors"));
  done({"export", folder / "run", "--out", folder / "out"});
  CHECK(read_file(folder / "out/model.safetensors") ==
        read_file(folder / "base/model.safetensors"));
  CHECK(run(training(folder, "none", {"--train-layers", "0"})).exit_code == 2);
  CHECK(run({"export", folder / "run", "--merge", "--out", folder / "x"}).exit_code == 2);
  // The frozen ones are found where they are by now.
  fs::rename(folder / "base", folder / "moved");
  done({"export", folder / "run", "--out", folder / "again", "--model", folder / "moved"});
  CHECK(read_file(folder / "again/model.safetensors") ==
        read_file(folder / "moved/model.safetensors"));
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
  exported_model(folder, "base", "1", "llama-tiny");
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
