// The program itself, killed at random times until a run is complete: nothing is missing from it.
#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t steps = 40;

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
