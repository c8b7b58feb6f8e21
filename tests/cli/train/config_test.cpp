// spillway train --config: a file in place of options, and a run folder that repeats its run.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <regex>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

std::string chats() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    const std::string a = std::to_string(i), b = std::to_string(2 * i), c = std::to_string(3 * i);
    text += R"({"messages":[{"role":"user","content":"What is )" + a + " + " + b +
            R"(?"},{"role":"assistant","content":"It is )" + c + ".\"}]}\n";
  }
  return text;
}

// What a training came to, digits as written.
struct Result {
  Words losses, evaluations;
  std::string weights;
  bool operator==(const Result&) const = default;
};

Result result_of(const fs::path& run) {
  Result result;
  const std::regex loss("\"loss\":([^,}]+)"), hash("\"weights_hash\":\"([0-9a-f]+)\"");
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    std::smatch match;
    if (std::regex_search(line, match, loss))
      (line.find("\"event\":\"step\"") != std::string::npos ? result.losses : result.evaluations)
          .push_back(match[1]);
    if (std::regex_search(line, match, hash)) result.weights = match[1];
  }
  return result;
}

// Of the start event.
std::string policy_of(const fs::path& run) {
  return nlohmann::json::parse(lines_of(read_file(run / "metrics.jsonl")).front())["policy"];
}

const std::string small =
    "model = \"gpt-tiny\"\nbatch = 2\nsequence = 16\nsteps = 3\npolicy = \"zero-infinity\"\n"
    "gpu_memory = \"32MB\"\nhost_memory = \"64MB\"\n";

std::string text_of(const TemporaryFolder& folder) {
  std::string text;
  while (text.size() < 4000) text += "It spills over, and still it runs. ";
  return folder.write("text.txt", text);
}

void check_ends(const Outcome& outcome) {
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
}

// Trains, moves the folder of the run, trains by the config in it, and compares.
void check_repeats(const TemporaryFolder& folder, const Words& training) {
  check_ends(run(training + Words{"--run", folder / "run", "--quiet"}));
  fs::rename(folder / "run", folder / "moved");
  check_ends(run(
      {"train", "--config", folder / "moved/config.toml", "--run", folder / "again", "--quiet"}));
  const Result first = result_of(folder / "moved"), again = result_of(folder / "again");
  CHECK(first.losses.size() >= 2);
  CHECK_FALSE(first.weights.empty());
  CHECK(first == again);
  CHECK(policy_of(folder / "moved") == policy_of(folder / "again"));
}

}  // namespace

TEST_CASE("A config file trains as the options do, with paths below its folder") {
  const TemporaryFolder folder;
  text_of(folder);
  check_ends(run(tiny_training(folder) + Words{"--steps", "3", "--quiet"}));
  folder.write("mine.toml", small + "data = \"text.txt\"\nrun = \"by-file\"\n");
  check_ends(run({"train", "--config", folder / "mine.toml", "--quiet"}));
  CHECK(result_of(folder / "run") == result_of(folder / "by-file"));
}

TEST_CASE("Options and assignments hold above a config file") {
  const TemporaryFolder folder;
  text_of(folder);
  const std::string file =
      folder.write("mine.toml", small +
                                    "data = \"text.txt\"\nlearning_rate = 1e-2\nkeep = 1\n"
                                    "keep_every = 1\n[set]\nmodel.layers = 2\n");
  const Outcome outcome =
      run({"train", "--config", file, "--run", folder / "run", "--json", "--steps", "2", "--set",
           "learning_rate=1e-3", "seed=7", "model.hidden=64", "keep=", "keep_every="});
  check_ends(outcome);
  const auto events = outcome.json_lines();
  CHECK(events.front()["steps"] == 2);
  CHECK(events.front()["seed"] == 7);
  CHECK(events.front()["overrides"] ==
        Words{"model.layers=2", "model.hidden=64", "gpu_memory=32MB", "host_memory=64MB"});
  CHECK(result_of(folder / "run").losses.size() == 2);
  const std::string kept = read_file(folder / "run/config.toml");
  CHECK_THAT(kept, Catch::Contains("learning_rate = 0.001") && Catch::Contains("seed = 7") &&
                       Catch::Contains("model.layers = \"2\"") && !Catch::Contains("keep"));
}

TEST_CASE("What a config file gets wrong is refused with its line, and nothing is left behind") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& text, const std::string& what,
                           const std::string& hint) {
    INFO(text);
    const std::string file = folder.write("mine.toml", text);
    const Words before = folder.listing();
    check_refusal(run({"train", "--config", file, "--run", folder / "run"}), 2, what, hint);
    CHECK(folder.listing() == before);
  };
  refused("model = \"gpt-tiny\"\nlerning_rate = 1e-3\n", "mine.toml:2:1: unknown key lerning_rate",
          "did you mean learning_rate?");
  refused("steps = \"ten\"\n", "mine.toml:1:9: steps is a string", "steps = 100");
  refused("threads = 0\n", "mine.toml:1:11: threads = 0 is not from 1 to 1024", "");
  // What shows only when the settings are put together, too.
  refused(small + "learning_rate = -1\n", "learning_rate = -1 (in ", "");
  refused("steps = 1\n", "--model is required", "");
  check_refusal(run({"train", "--config", folder / "none.toml"}), 2, "none.toml", "");
  check_refusal(run({"train", "--config", folder.write("mine.toml", small), "--resume", "--run",
                     folder / "none"}),
                2, "there is no run in", "--run");
  check_refusal(run({"train", "--model", "gpt-tiny", "--steps", "1", "--set", "steps=2"}), 2,
                "--steps and --set steps=2 both say the same setting", "give one of them");
}

TEST_CASE("The config of a run repeats it: an automatic policy, chats and epochs") {
  const TemporaryFolder folder;
  const std::string data = folder.write("chats.jsonl", chats());
  const std::string file =
      folder.write("mine.toml",
                   "model = \"gpt-tiny\"\ndata = \"chats.jsonl\"\nchat_template = \"chatml\"\n"
                   "epochs = 1\nbatch = 4\nsequence = 160\nvalidation = \"10%\"\nwarmup = \"20%\"\n"
                   "learning_rate_schedule = \"cosine\"\ngpu_memory = \"32MB\"\n"
                   "host_memory = \"64MB\"\n[set]\nmodel.layers = 2\n");
  KeptMeasurements kept(folder / "cache");
  check_repeats(folder, {"train", "--config", file});

  // Other data is refused.
  folder.write("chats.jsonl", chats() + chats());
  const Words again = {"train", "--config", folder / "again/config.toml", "--run", folder / "x"};
  check_complaint(run(again), 2, "data_hash = ", "put back what it was");
  CHECK_FALSE(fs::exists(folder / "x"));
  // Unless it is given on purpose.
  check_ends(run(again + Words{"--data", data, "--quiet"}));
}

TEST_CASE("The config of a run repeats it: low-rank adapters of a model in a file") {
  const TemporaryFolder folder;
  folder.write("shape.toml",
               "[[model]]\nname = \"mine\"\nlayers = 3\nhidden = 32\nheads = 2\nvocabulary = 256\n"
               "positions = 64\n");
  check_repeats(folder, {"train", "--model", folder / "shape.toml", "--lora", "rank=2", "--data",
                         text_of(folder), "--batch", "2", "--sequence", "16", "--steps", "3",
                         "--policy", "zero-infinity", "--set", "model.layers=2", "--seed", "9"});
  // Without the file of the model, too.
  fs::remove(folder / "shape.toml");
  check_ends(run(
      {"train", "--config", folder / "again/config.toml", "--run", folder / "third", "--quiet"}));
  CHECK(result_of(folder / "third") == result_of(folder / "again"));
}

TEST_CASE("The config of a run repeats it from the weights of a folder, and from no others") {
  const TemporaryFolder folder;
  const Words small_training = {"--data", text_of(folder), "--batch", "2",        "--sequence",
                                "16",     "--steps",       "2",       "--policy", "zero-infinity"};
  check_ends(run(Words{"train", "--model", "gpt-tiny", "--run", folder / "base", "--quiet"} +
                 small_training));
  check_repeats(folder, Words{"train", "--model", folder / "base"} + small_training);
  check_ends(run(Words{"train", "--resume", "--run", folder / "base", "--steps", "3", "--quiet"}));
  check_complaint(run({"train", "--config", folder / "again/config.toml", "--run", folder / "x"}),
                  2, "weights_hash = ", "put back");
  CHECK_FALSE(fs::exists(folder / "x"));
}

TEST_CASE("A run that goes on by its config file takes what has changed in it") {
  const TemporaryFolder folder;
  text_of(folder);
  const std::string text = small + "data = \"text.txt\"\nrun = \"run\"\nwarmup = \"50%\"\n";
  const std::string file = folder.write("mine.toml", text);
  check_ends(run({"train", "--config", file, "--quiet"}));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    folder.write("mine.toml", other);
  };
  with("steps = 3", "steps = 5");
  check_ends(run({"train", "--config", file, "--resume", "--quiet"}));
  CHECK(recorded_losses(folder / "run").size() == 5);
  CHECK_THAT(read_file(folder / "run/config.toml"), Catch::Contains("steps = 5"));
  with("batch = 2", "batch = 4");
  const Outcome other = run({"train", "--config", file, "--resume", "--steps", "6"});
  CHECK(other.exit_code == 2);
  CHECK_THAT(other.err, Catch::Contains("batch (in "));
  // By the config that the run keeps itself.
  check_ends(run({"train", "--config", folder / "run/config.toml", "--resume", "--run",
                  folder / "run", "--steps", "7", "--quiet"}));
  CHECK(recorded_losses(folder / "run").size() == 7);
}
