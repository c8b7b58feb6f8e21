// What people have a training watch for: samples of what it says, its best evaluation, evaluations
// that do not get better, losses that jump. All of it is the same in every policy, and after kills.
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

// A text with some lines of noise, which is hard to predict.
std::string uneven_text(const TemporaryFolder& folder) {
  std::mt19937_64 random(5);
  std::string text;
  for (int line = 0; line < 3000; ++line) {
    if (line % 300 == 299) {
      for (int k = 0; k < 800; ++k) text += static_cast<char>(33 + random() % 90);
      text += '\n';
    }
    text += "the bell rings, the lamp is lit\n";
  }
  return folder.write("uneven.txt", text);
}

Words training(const TemporaryFolder& folder, const std::string& run, const Words& how) {
  return Words{"train",
               "--model",
               "gpt-tiny",
               "--set",
               "model.layers=2",
               "--set",
               "model.hidden=64",
               "--data",
               uneven_text(folder),
               "--batch",
               "2",
               "--micro-batch",
               "1",
               "--sequence",
               "64",
               "--gpu-memory",
               "4MB",
               "--host-memory",
               "24MB",
               "--device",
               "cpu",
               "--run",
               folder / run} +
         how;
}

std::vector<json> events(const fs::path& run, const Words& names) {
  std::vector<json> found;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    json event = json::parse(line);
    if (std::find(names.begin(), names.end(), event["event"]) == names.end()) continue;
    for (const char* differs : {"seconds", "folder", "tokens_per_second", "step_seconds",
                                "ssd_bytes_read", "ssd_bytes_written"})
      event.erase(differs);
    found.push_back(std::move(event));
  }
  return found;
}

void done(const Words& arguments) {
  const Outcome outcome = run(arguments);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
}

const Words watched = {"--validation",
                       "2%",
                       "--evaluate-every",
                       "10",
                       "--evaluate-batches",
                       "3",
                       "--steps",
                       "25",
                       "--keep-best",
                       "--sample-prompt",
                       "the bell",
                       "the",
                       "--sample-every",
                       "7",
                       "--sample-tokens",
                       "12",
                       "--quiet"};

}  // namespace

TEST_CASE("samples and evaluations are the same bytes in every policy", "[store]") {
  const TemporaryFolder folder;
  const Words deep = {
      "--set", "model.layers=6", "--steps", "3",      "--sample-prompt", "the", "--sample-tokens",
      "5",     "--gpu-memory",   "64MB",    "--quiet"};
  done(training(folder, "deep", deep + Words{"--policy", "resident"}));
  REQUIRE(events(folder / "deep", {"sample"}).size() == 2);
  std::vector<json> expected;
  for (const std::string policy :
       {"zero-offload", "zero-infinity", "fuyou", "greedysnake:snake=off", "spillway"}) {
    CAPTURE(policy);
    done(training(folder, policy, watched + Words{"--policy", policy}));
    const std::vector<json> rows = events(folder / policy, {"evaluation", "best", "sample"});
    if (expected.empty()) expected = rows;
    CHECK(rows == expected);
    CHECK(read_file(folder / (policy + "/best/model.safetensors")) ==
          read_file(folder / "zero-offload/best/model.safetensors"));
  }
  REQUIRE(expected.size() > 8);
  // In memory for two layers only: the others are read from where they rest.
  for (const std::string policy : {"zero-infinity", "fuyou"}) {
    CAPTURE(policy);
    done(training(folder, "deep-" + policy,
                  deep + Words{"--policy", policy, "--sample-memory", "1MB"}));
    CHECK(events(folder / ("deep-" + policy), {"sample"}) == events(folder / "deep", {"sample"}));
  }
  // After steps 0, 7, 14, 21 and 25, of two prompts.
  CHECK(events(folder / "fuyou", {"sample"}).size() == 10);
}

TEST_CASE("a sample is what generate says with the weights of that step", "[store]") {
  const TemporaryFolder folder;
  done(training(folder, "run", watched + Words{"--policy", "fuyou", "--sample-seed", "9"}));
  const json said = run({"generate", folder / "run", "--prompt", "the bell", "the", "--tokens",
                         "12", "--seed", "9", "--json"})
                        .json();
  const std::vector<json> samples = events(folder / "run", {"sample"});
  REQUIRE(samples.size() == 10);
  for (std::size_t k = 0; k < 2; ++k) {
    CHECK(samples[8 + k]["text"] == said["answers"][k]["text"]);
    CHECK(samples[8 + k]["step"] == 25);
  }
  // The best evaluation's weights are those of its step.
  const std::vector<json> best = events(folder / "run", {"best"});
  REQUIRE_FALSE(best.empty());
  const std::string steps = std::to_string(best.back()["step"].get<int>());
  done(training(folder, "shorter",
                {"--validation", "2%", "--steps", steps, "--policy", "resident", "--gpu-memory",
                 "64MB", "--quiet"}));
  CHECK(read_file(folder / "shorter/model.safetensors") ==
        read_file(folder / "run/best/model.safetensors"));
}

TEST_CASE("memory for samples is set aside before a training is planned") {
  const TemporaryFolder folder;
  const Words how = {"--policy", "zero-infinity", "--steps", "2", "--sample-prompt", "the"};
  const Outcome refused = run(training(folder, "run", how + Words{"--host-memory", "100kB"}));
  CHECK(refused.exit_code == 3);
  CHECK(refused.err.find("memory that writes samples") != std::string::npos);
  const Words remedy = settings_in_hint(refused);
  const Outcome fits = run(training(folder, "run", how + remedy));
  INFO(refused.err << fits.err);
  CHECK(fits.exit_code == 0);
  check_complaint(run(training(folder, "less", how + Words{"--sample-memory", "10kB"})), 2,
                  "--sample-memory 10.00 kB: two layers", "give as much");
  check_complaint(run(training(folder, "idle", {"--sample-every", "3"})), 2, "there is no prompt",
                  "--sample-prompt");
}

TEST_CASE("a training ends where evaluations do not get better, also when it goes on from a commit",
          "[store]") {
  const TemporaryFolder folder;
  const Words how = {"--policy",           "fuyou",  "--steps",          "400",
                     "--validation",       "2%",     "--evaluate-every", "5",
                     "--evaluate-batches", "3",      "--learning-rate",  "0.3",
                     "--early-stop",       "2",      "--keep-best",      "--durability",
                     "interval=3",         "--quiet"};
  done(training(folder, "whole", how));
  const std::vector<json> expected = events(folder / "whole", {"step", "evaluation", "best"});
  const json end = events(folder / "whole", {"end"}).back();
  CHECK(end["ended_early"] == true);
  REQUIRE(end["steps"] < 400);
  CHECK(run({"runs", folder.path().string(), "--json"}).json()["runs"][0]["state"] == "done");

  // Killed between two evaluations, and gone on with: the same end.
  {
    Program program(training(folder, "parts", how));
    while (program.running() && recorded_losses(folder / "parts").size() < 8)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    program.send(SIGKILL);
    program.wait();
  }
  done({"train", "--resume", "--run", folder / "parts", "--quiet"});
  CHECK(events(folder / "parts", {"step", "evaluation", "best"}) == expected);
  // One who is more patient goes on.
  done({"train", "--resume", "--run", folder / "parts", "--early-stop", "0", "--steps",
        std::to_string(end["steps"].get<int>() + 4), "--quiet"});
  CHECK(events(folder / "parts", {"end"}).back()["steps"] == end["steps"].get<int>() + 4);
}

TEST_CASE("a batch whose loss jumps is left out, whatever was committed before it", "[store]") {
  const TemporaryFolder folder;
  const Words how = {"--policy", "zero-infinity",   "--steps", "120",         "--spike-guard",
                     "2",        "--learning-rate", "3e-3",    "--no-export", "--quiet"};
  done(training(folder, "often", how + Words{"--durability", "step"}));
  done(training(folder, "seldom", how + Words{"--durability", "interval=25"}));
  const std::vector<json> spikes = events(folder / "often", {"spike"});
  REQUIRE_FALSE(spikes.empty());
  CHECK(events(folder / "seldom", {"spike"}) == spikes);
  const auto losses = recorded_losses(folder / "often");
  CHECK(losses.size() == 120);
  CHECK(recorded_losses(folder / "seldom") == losses);
  // Without these batches from the beginning, and no guard: the same training.
  Words left_out = {"--left-out"};
  for (const json& spike : spikes)
    left_out.push_back(std::to_string(spike["left_out"].get<std::int64_t>()));
  done(training(folder, "without",
                Words{"--policy", "resident", "--gpu-memory", "64MB", "--steps", "120",
                      "--learning-rate", "3e-3", "--no-export", "--quiet"} +
                    left_out));
  CHECK(recorded_losses(folder / "without") == losses);
  CHECK(events(folder / "without", {"end"}).back()["weights_hash"] ==
        events(folder / "often", {"end"}).back()["weights_hash"]);
  check_complaint(
      run({"train", "--resume", "--run", folder / "often", "--steps", "130", "--left-out", "1"}), 2,
      "--left-out", "leave the option out");
  check_complaint(run(training(folder, "off", how + Words{"--durability", "off"})), 2,
                  "--spike-guard goes back to the last commit", "leave --durability out");
}
