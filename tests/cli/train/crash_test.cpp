// The program itself, killed at random times until a run is complete: nothing is missing from it.
#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t steps = 40;
using Milliseconds = std::chrono::duration<double, std::milli>;

Words training(const TemporaryFolder& folder) {
  return tiny_training(folder) +
         Words{"--no-export", "--json", "--quiet", "--steps", std::to_string(steps)};
}

// What the end of a run says in its metrics.
std::string recorded_weights(const std::string& run) {
  std::ifstream metrics(fs::path(run) / "metrics.jsonl");
  std::string weights;
  for (std::string line; std::getline(metrics, line);) {
    const json event = json::parse(line, nullptr, false);
    if (event.is_object() && event["event"] == "end") weights = event["weights_hash"];
  }
  return weights;
}

// On records of which some are held out and evaluated every third step.
Words evaluated_training(const TemporaryFolder& folder) {
  std::string records;
  for (int i = 0; i < 60; ++i) {
    std::string words;
    for (int j = 0; j <= i % 9; ++j) words += "word" + std::to_string(i * j % 17) + " ";
    records += json{{"text", words}}.dump() + "\n";
  }
  return tiny_training(folder, folder.write("records.jsonl", records)) +
         Words{"--set",
               "model.layers=2",
               "model.hidden=32",
               "model.heads=2",
               "--validation",
               "20%",
               "--evaluate-every",
               "3",
               "--gradient-clip",
               "global=1",
               "--durability",
               "step",
               "--no-export",
               "--json",
               "--steps",
               std::to_string(steps)};
}

// What metrics.jsonl and metrics.csv tell, without the times and what a start of a run costs.
struct Story {
  std::vector<Words> events, rows;
};

Story story_of(const fs::path& run) {
  Story story;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    const json event = json::parse(line);
    const std::string name = event["event"];
    if (name != "step" && name != "evaluation" && name != "end") continue;
    Words told = {name};
    for (const char* key : {"step", "steps", "loss", "final_loss", "perplexity", "tokens",
                            "grad_norm", "learning_rate", "weights_hash", "interrupted"})
      if (event.contains(key)) told.push_back(key + ("=" + event[key].dump()));
    story.events.push_back(told);
  }
  std::vector<bool> told;  // by column
  for (const std::string& line : lines_of(read_file(run / "metrics.csv"))) {
    Words row;
    std::istringstream cells(line);
    std::size_t column = 0;
    for (std::string cell; std::getline(cells, cell, ','); ++column) {
      if (story.rows.empty())
        told.push_back(cell.find("second") == std::string::npos && !cell.starts_with("ssd"));
      if (told[column]) row.push_back(cell);
    }
    story.rows.push_back(row);
  }
  return story;
}

// The first line in which two tables differ; empty: there is none.
std::string difference(const std::vector<Words>& expected, const std::vector<Words>& found) {
  for (std::size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    const Words left = i < expected.size() ? expected[i] : Words{"nothing"};
    const Words right = i < found.size() ? found[i] : Words{"nothing"};
    if (left != right)
      return "line " + std::to_string(i) + ": " + json(left).dump() + ", not " + json(right).dump();
  }
  return "";
}

// Ends the program at a random moment, now and then as Ctrl-C does. Returns whether it was killed.
bool end_early(Program& program, std::mt19937_64& random, Milliseconds longest) {
  const double share = std::uniform_real_distribution<double>(0, 1)(random);
  std::this_thread::sleep_for(share * longest);
  const bool kills = random() % 5 != 0;
  program.send(kills ? SIGKILL : SIGINT);
  return kills;
}

// Ends trainings early and resumes them until they are complete, one after the other until as many
// processes as `kills` were killed.
void check_story(int kills) {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const Words ways = {"zero-infinity", "greedysnake:optimizer_ssd=1", "fuyou"};
  for (std::size_t training = 0; kills > 0; ++training) {
    const TemporaryFolder folder;
    const Words arguments = evaluated_training(folder) + Words{"--policy", ways[training % 3]};
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(run(arguments + Words{"--run", folder / "whole"}).exit_code == 0);
    const Milliseconds whole = std::chrono::steady_clock::now() - begin;
    const std::string file = folder / "run";
    bool is_complete = false;
    while (!is_complete) {
      const bool begun = fs::exists(fs::path(file) / "run.json");
      if (!begun) fs::remove_all(file);  // as the program asks for
      Program program(begun ? Words{"train", "--resume", "--run", file, "--json"} : arguments);
      if (kills > 0 && end_early(program, random, whole)) --kills;
      const Outcome last = program.wait();
      INFO("exit code " << last.exit_code << ", signal " << last.signal << "\n" << last.err);
      // It had done all, and was killed as it ended.
      const bool was_complete =
          last.exit_code == 2 && last.err.find("larger --steps") != std::string::npos;
      is_complete = last.exit_code == 0 || was_complete;
      REQUIRE((is_complete || last.signal == SIGKILL || last.signal == SIGINT ||
               last.exit_code == 130));
    }
    const Story expected = story_of(folder / "whole"), found = story_of(file);
    CHECK(difference(expected.events, found.events) == "");
    CHECK(difference(expected.rows, found.rows) == "");
  }
}

}  // namespace

TEST_CASE("a run that is killed at random times until it is complete misses no step",
          "[store][slow]") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const std::vector<Words> ways = {
      {"--policy", "greedysnake:optimizer_ssd=1,snake=off", "--durability", "step"},
      {"--policy", "zero-infinity", "--durability", "interval=3"},
      {"--policy", "resident", "--durability", "step"},
      {"--policy", "fuyou", "--durability", "interval=7"}};
  std::map<std::int64_t, double> whole;
  std::string weights;
  std::size_t kills = 0;
  for (const Words& way : ways) {
    const TemporaryFolder folder;
    const Words arguments = training(folder) + way;
    const Outcome undisturbed = run(arguments + Words{"--run", folder / "whole"});
    REQUIRE(undisturbed.exit_code == 0);
    whole = recorded_losses(folder / "whole");
    REQUIRE(whole.size() == steps);
    weights = undisturbed.json_lines().back()["weights_hash"];
    const std::string file = folder / "run";
    bool begun = false;
    Outcome last;
    // Until it ends by itself: a run that is left alone for long enough does.
    for (int attempt = 0; attempt < 60; ++attempt) {
      Words next = begun ? Words{"train", "--resume", "--run", file, "--json"} : arguments;
      if (begun && random() % 3 == 0) next = next + ways[random() % ways.size()];
      Program program(next);
      const bool may_end = attempt >= 6;
      const auto wanted = random() % 25;  // lines
      while (program.running() && (may_end || lines_of(program.output()).size() < wanted))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
      if (!may_end) program.send(SIGKILL);
      last = program.wait();
      INFO(last.err);
      if (last.signal == SIGKILL) {
        ++kills;
        begun = fs::exists(fs::path(file) / "run.json");
        if (!begun) fs::remove_all(file);  // as the program asks for
        continue;
      }
      break;
    }
    // The last kill may have come when all was done, and only the process still there.
    if (last.exit_code == 2)
      CHECK_THAT(last.err, Catch::Contains("larger --steps") || Catch::Contains("already"));
    INFO(last.err);
    REQUIRE((last.exit_code == 0 || last.exit_code == 2));
    CHECK(recorded_losses(file) == whole);
    CHECK(recorded_weights(file) == weights);
    CHECK(run({"store", "inspect", folder / "run"}).exit_code == 0);
  }
  CHECK(kills > 0);
}

TEST_CASE("a training that was killed and stopped a few times tells the story of one that was not",
          "[store]") {
  check_story(8);
}

TEST_CASE("a training that was killed a hundred times tells the story of one that was not",
          "[store][slow]") {
  check_story(100);
}

TEST_CASE("a line of the metrics that a crash has cut, and a run.json half replaced, do no harm",
          "[store]") {
  const TemporaryFolder folder;
  const Words arguments = training(folder) + Words{"--policy", "greedysnake:optimizer_ssd=1"};
  REQUIRE(run(arguments + Words{"--run", folder / "whole"}).exit_code == 0);
  {
    Program program(arguments);
    while (program.running() && lines_of(program.output()).size() < 8)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    program.send(SIGKILL);
    REQUIRE(program.wait().signal == SIGKILL);
  }
  std::ofstream(folder / "run/metrics.jsonl", std::ios::app) << "{\"event\":\"step\",\"st";
  folder.write("run/run.json.new", "{\"options\": {\"mod");
  const Outcome rest = run({"train", "--resume", "--run", folder / "run", "--json"});
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(recorded_losses(folder / "run") == recorded_losses(folder / "whole"));
}

TEST_CASE("a run killed after its last commit gives its weights when it is resumed", "[store]") {
  const TemporaryFolder folder;
  const Words arguments = tiny_training(folder) + Words{"--json", "--steps", "5", "--policy",
                                                        "greedysnake:optimizer_ssd=1,snake=off"};
  const Outcome whole = run(arguments);
  REQUIRE(whole.exit_code == 0);
  // As it was before it said that it is complete.
  std::ifstream in(folder / "run/run.json");
  json saved = json::parse(in);
  REQUIRE(saved["complete"] == true);
  saved["complete"] = false;
  folder.write("run/run.json", saved.dump());
  fs::remove(folder / "run/model.safetensors");
  const Outcome again = run({"train", "--resume", "--run", folder / "run", "--json"});
  INFO(again.err);
  REQUIRE(again.exit_code == 0);
  const json end = again.json_lines().back();
  CHECK(end["steps"] == 5);
  CHECK(end["weights_hash"] == whole.json_lines().back()["weights_hash"]);
  CHECK(fs::exists(folder / "run/model.safetensors"));
}
