// spillway train --dry-run: what a training comes to, without a trace of it. spillway init: a
// config file that `train` takes as it is.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

std::string chats() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    const std::string a = std::to_string(i), b = std::to_string(2 * i);
    text += R"({"messages":[{"role":"user","content":"What is twice )" + a +
            R"(?"},{"role":"assistant","content":"It is )" + b + ".\"}]}\n";
  }
  return text;
}

// Every file below the folder, with what is in it.
std::map<std::string, std::string> contents(const TemporaryFolder& folder) {
  std::map<std::string, std::string> all;
  for (const std::string& name : folder.listing())
    all[name] = fs::is_regular_file(folder / name) ? read_file(folder / name) : "";
  return all;
}

// What a dry run foretells is in the event that the training starts with.
void check_foretold(const json& dry, const json& start) {
  for (const char* key : {"model", "policy", "steps", "first_step", "workload", "overrides",
                          "predicted_step_seconds", "seed", "data", "wear"}) {
    INFO(key);
    CHECK(dry.at(key) == start.at(key));
  }
  CHECK(dry["durability"]["commit_every"] == start["durability"]["commit_every"]);
  for (const char* tier : {"gpu", "host", "ssd"}) {
    INFO(tier);
    if (std::string(tier) != "ssd")  // of which others may have taken some since
      CHECK(dry["memory"][tier]["capacity_bytes"] == start["memory"][tier]["capacity_bytes"]);
    CHECK(dry["memory"][tier]["peak_bytes"] >= start["memory"][tier]["peak_bytes"]);
    if (start["memory"][tier]["peak_bytes"] > 0) CHECK_FALSE(dry["memory"][tier]["parts"].empty());
  }
  if (start.contains("evaluation")) CHECK(dry.at("evaluation") == start.at("evaluation"));
}

json ended(const Outcome& outcome) {
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json_lines().front();
}

}  // namespace

TEST_CASE("A dry run says what the training comes to, and leaves nothing behind") {
  const TemporaryFolder folder;
  const Words training =
      tiny_training(folder) + Words{"--validation", "10%", "--evaluate-every", "3", "--steps", "7",
                                    "--keep",       "2",   "--keep-every",     "2"};
  const auto before = contents(folder);
  const Outcome dry = run(training + Words{"--dry-run", "--json"});
  INFO(dry.err);
  REQUIRE(dry.exit_code == 0);
  CHECK(contents(folder) == before);
  const Outcome text = run(training + Words{"--dry-run"});
  CHECK(text.exit_code == 0);
  CHECK(contents(folder) == before);
  for (const char* word : {"zero-infinity", "7 steps", "gpu ", "optimizer", "ssd written",
                           "commits", "model.safetensors", "checkpoints", "hash of the data",
                           "every 3 steps", "nothing was written"})
    CHECK_THAT(text.out, Catch::Contains(word));
  const json start = ended(run(training + Words{"--json"}));
  check_foretold(dry.json(), start);
  CHECK(dry.json()["outputs"].size() == 2);
  CHECK(dry.json()["outputs"][0]["bytes"].get<std::uint64_t>() <=
        fs::file_size(folder / "run/model.safetensors"));
}

TEST_CASE("A dry run of a run that goes on leaves the run as it is") {
  const TemporaryFolder folder;
  const Words training = tiny_training(folder);
  ended(run(training + Words{"--json"}));
  const auto before = contents(folder);
  const Words more = {"train", "--resume", "--run", folder / "run", "--steps", "5", "--json"};
  const Outcome dry = run(more + Words{"--dry-run", "--set", "keep=1", "keep_every=1"});
  INFO(dry.err);
  REQUIRE(dry.exit_code == 0);
  CHECK(dry.json()["first_step"] == 2);
  const json plain = run(more + Words{"--dry-run"}).json();
  const Outcome refused = run(more + Words{"--dry-run", "--batch", "4"});
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, Catch::Contains("--batch"));
  CHECK(contents(folder) == before);
  check_foretold(plain, ended(run(more)));
}

TEST_CASE("A dry run that does not fit says what would make it fit") {
  const TemporaryFolder folder;
  const Words training = tiny_training(folder) + Words{"--gpu-memory", "100KB", "--dry-run"};
  const auto before = contents(folder);
  const Outcome outcome = run(training);
  CHECK(outcome.exit_code == 3);
  CHECK(contents(folder) == before);
  check_complaint(outcome, 3, "does not fit in gpu memory", "--gpu-memory");
  const Words remedy = settings_in_hint(outcome);
  CHECK(run(training + remedy).exit_code == 0);
}

TEST_CASE("init writes a config file that trains as it is") {
  const TemporaryFolder folder;
  KeptMeasurements kept(folder / "cache");
  const std::string data = folder.write("chats.jsonl", chats());
  const std::string file = folder / "mine.toml";
  const Outcome made = run({"init", "--data", data, "--out", file, "--model", "gpt-tiny"});
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK_THAT(made.out, Catch::Contains("spillway train --config " + file));
  const std::string text = read_file(file);
  for (const char* line :
       {"\nmodel = \"gpt-tiny\"\n", "\ndata = [\"chats.jsonl\"]\n",
        "\nepochs = ", "\nwarmup = \"3%\"\n", "\nvalidation = \"", "\npolicy = \"auto\"\n",
        "\n# weight_decay = ", "\n#   micro-batches of ", "\n#   host ", "\n# [set]\n"})
    CHECK_THAT(text, Catch::Contains(line));
  check_refusal(run({"init", "--data", data, "--out", file}), 2, "it is there already", "--force");
  CHECK(read_file(file) == text);
  CHECK(run({"init", "--data", data, "--out", file, "--force"}).exit_code == 0);

  const Outcome whole = run({"train", "--config", file, "--dry-run", "--json"});
  INFO(whole.err);
  REQUIRE(whole.exit_code == 0);
  CHECK_THAT(text, Catch::Contains(whole.json()["policy"].get<std::string>()));
  // Nothing is known by the model yet: it sees the chats often enough for 300 steps.
  CHECK(whole.json()["steps"] >= 300);
  const std::vector<std::string> shorter = {"train", "--config", file, "--epochs", "1"};
  const Outcome dry = run(shorter + std::vector<std::string>{"--dry-run", "--json"});
  REQUIRE(dry.exit_code == 0);
  const Outcome trained =
      run(shorter + std::vector<std::string>{"--run", folder / "run", "--quiet"});
  INFO(trained.err);
  CHECK(trained.exit_code == 0);
  CHECK(recorded_losses(folder / "run").size() == dry.json()["steps"]);
}

TEST_CASE("init writes a config file for another computer, whose drives are larger") {
  const TemporaryFolder folder;
  const std::string file = folder / "mine.toml";
  const Outcome made = run({"init", "--model", "gpt-13b", "--machine", "rtx4090-12ssd", "--out",
                            file, "--data", folder.write("text.txt", std::string(9000, 'a'))});
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK_THAT(read_file(file), Catch::Contains("\nmachine = \"rtx4090-12ssd\"\n") &&
                                  Catch::Contains("#   micro-batches of"));
}

TEST_CASE("init refuses what cannot be trained, and writes nothing then") {
  const TemporaryFolder folder;
  const std::string file = folder / "mine.toml";
  check_complaint(run({"init", "--model", "gpt-tinny", "--out", file}), 2, "gpt-tinny", "gpt-tiny");
  check_complaint(run({"init", "--data", folder / "none.jsonl", "--out", file}), 2, "none.jsonl",
                  "");
  check_refusal(run({"init", "--out", folder / "no/such/folder.toml"}), 2, "folder", "");
  CHECK(folder.listing().empty());
}
