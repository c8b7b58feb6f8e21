// spillway train: what it prints, what it leaves, and that it repeats itself bit for bit.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <regex>
#include <thread>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

Words keys(const std::string& line) {
  Words names;
  const auto event = nlohmann::ordered_json::parse(line);
  for (const auto& [key, value] : event.items()) names.push_back(key);
  return names;
}

// The text of "loss" in a line, digits as printed.
std::string loss_text(const std::string& line) {
  std::smatch match;
  REQUIRE(std::regex_search(line, match, std::regex("loss\":([-+0-9.e]+)")));
  return match[1];
}

std::vector<double> losses(const Outcome& outcome) {
  std::vector<double> values;
  for (const json& event : outcome.json_lines()) {
    if (event["event"] == "step") values.push_back(event["loss"]);
  }
  return values;
}

const Words run_files = {
    "run/config.json",   "run/config.toml",       "run/events.out.tfevents.0000000001.spillway",
    "run/export.lock",   "run/loss.svg",          "run/metrics.csv",
    "run/metrics.jsonl", "run/model.safetensors", "run/model.toml",
    "run/run.json",      "run/trace.json.gz"};

}  // namespace

TEST_CASE("train --json prints start, steps and end, one object a line") {
  const TemporaryFolder folder;
  const Outcome outcome =
      run(tiny_training(folder) + Words{"--json", "--steps", "3", "--seed", "5"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  // Commits are between the steps they follow: all state rests on the ssd, so every step counts.
  Words lines, commits;
  for (const std::string& line : lines_of(outcome.out)) {
    (json::parse(line)["event"] == "commit" ? commits : lines).push_back(line);
  }
  REQUIRE(lines.size() == 5);
  REQUIRE_FALSE(commits.empty());
  CHECK(keys(commits.back()) == Words{"event", "step", "bytes_written"});
  CHECK(json::parse(commits.back())["step"] == 3);
  CHECK(keys(lines[0]) == Words{"event",      "model",      "policy",
                                "device",     "steps",      "workload",
                                "overrides",  "memory",     "predicted_step_seconds",
                                "seed",       "data",       "run",
                                "first_step", "time",       "flops",
                                "lane_bytes", "durability", "data_hash",
                                "wear",       "io",         "smart"});
  const json start = json::parse(lines[0]);
  CHECK(start["event"] == "start");
  CHECK(start["policy"] == "zero-infinity");
  CHECK(start["seed"] == 5);
  CHECK(start["predicted_step_seconds"].is_null());  // no machine file
  CHECK(start["memory"]["gpu"]["capacity_bytes"] == 32'000'000);
  CHECK(start["memory"]["host"]["capacity_bytes"] == 64'000'000);
  CHECK(start["memory"]["ssd"]["peak_bytes"] > 0);

  double last = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string& line = lines[i + 1];
    CHECK(keys(line) == Words{"event", "step", "loss", "tokens_per_second", "step_seconds",
                              "grad_norm", "learning_rate", "ssd_bytes_read", "ssd_bytes_written"});
    const json step = json::parse(line);
    CHECK(step["event"] == "step");
    CHECK(step["step"] == i);
    CHECK(step["grad_norm"] > 0.0);
    CHECK(step["ssd_bytes_written"] > 0);
    CHECK(step["tokens_per_second"].get<double>() * step["step_seconds"].get<double>() ==
          Approx(2 * 16));
    // 17 significant digits: the text is that of one double only.
    const std::string text = loss_text(line);
    char again[64];
    std::snprintf(again, sizeof(again), "%#.17g", std::strtod(text.c_str(), nullptr));
    CHECK(text == again);
    last = step["loss"];
  }
  CHECK(keys(lines[4]) == Words{"event", "steps", "final_loss", "weights_hash",
                                "commit_bytes_written", "ssd_bytes_written", "smart"});
  const json end = json::parse(lines[4]);
  CHECK(end["steps"] == 3);
  CHECK(end["final_loss"] == last);
  CHECK(std::regex_match(end["weights_hash"].get<std::string>(), std::regex("[0-9a-f]{16}")));

  // The run folder: the same events, files of the right kind, none half-written, and the state.
  CHECK(read_file(folder / "run/metrics.jsonl") == outcome.out);
  CHECK(folder.listing() == Words{"run"} + Words(run_files.begin(), run_files.end() - 1) +
                                Words{"run/run.lock", "run/ssd", "run/ssd/spillway-commit.bin",
                                      "run/ssd/spillway-store-0.bin", "run/trace.json.gz",
                                      "text.txt"});
  CHECK(read_file(folder / "run/trace.json.gz").substr(0, 2) == "\x1f\x8b");
  CHECK_THAT(read_file(folder / "run/model.safetensors").substr(0, 200),
             Catch::Contains("__metadata__"));
  const Outcome again =
      run({"simulate", "--model", folder / "run/model.toml", "--machine", "testbed", "--policy",
           "resident", "--batch", "1", "--sequence", "16", "--json"});
  CHECK(again.json()["model"] == "gpt-tiny");
}

TEST_CASE(
    "A step that fits the machine file is predicted, and auto takes the one that compare shows") {
  const TemporaryFolder folder;
  const Words limits = {"--gpu-memory", "16MB", "--host-memory", "64MB"};
  const Outcome trained = run(tiny_training(folder) +
                              Words{"--policy", "auto", "--machine", "testbed", "--json"} + limits);
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  const json start = trained.json_lines().front();
  const json table =
      run(Words{"compare", "--machine", "testbed", "--json"} + tiny_problem() + limits).json();
  json best;
  for (const json& policy : table["policies"]) {
    if (policy["policy"] == table["auto"]) best = policy;
  }
  CHECK(start["policy"] == best["policy"]);
  CHECK(start["workload"]["micro_batch"] == best["workload"]["micro_batch"]);
  CHECK(start["predicted_step_seconds"] == best["step_seconds"]);
  // The machine file of the run is a machine again, with the limits that were kept.
  const json rerun = run(Words{"simulate", "--machine", folder / "run/machine.toml", "--policy",
                               "resident", "--json"} +
                         tiny_problem())
                         .json();
  CHECK(rerun["memory"]["host"]["capacity_bytes"] == 64'000'000);
  CHECK_THAT(read_file(folder / "run/machine.toml"),
             Catch::Contains("source = \"a limit set by hand\""));
}

TEST_CASE(
    "The same seed gives the same losses and weights under another policy, another seed does not") {
  const std::string precision = GENERATE("fp32", "bf16");
  INFO(precision);
  const TemporaryFolder folder;
  const auto train = [&](const std::string& policy, const std::string& seed) {
    fs::remove_all(folder / "run");
    return run(tiny_training(folder) + Words{"--json", "--no-export", "--micro-batch", "1",
                                             "--policy", policy, "--seed", seed, "--precision",
                                             precision});
  };
  const Outcome first = train("zero-infinity", "1"), other_policy = train("zero-offload", "1"),
                other_seed = train("zero-infinity", "2");
  REQUIRE(losses(first).size() == 2);
  CHECK(losses(first) == losses(other_policy));
  CHECK(first.json_lines().back()["weights_hash"] ==
        other_policy.json_lines().back()["weights_hash"]);
  CHECK(losses(first) != losses(other_seed));
  CHECK_FALSE(fs::exists(folder / "run/model.safetensors"));  // --no-export
}

TEST_CASE(
    "Text for people goes to standard output, progress to standard error, both plain off a "
    "terminal") {
  const TemporaryFolder folder;
  const Outcome outcome = run(tiny_training(folder));
  REQUIRE(outcome.exit_code == 0);
  for (const std::string& text : {outcome.out, outcome.err}) {
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(text.find('\r') == std::string::npos);
  }
  CHECK_THAT(outcome.out, Catch::Contains("gpt-tiny with policy zero-infinity") &&
                              Catch::Contains("2 steps, loss") &&
                              Catch::Contains("model.safetensors"));
  CHECK_THAT(outcome.err, Catch::Contains("step 1/2  loss") && Catch::Contains("tokens/s"));
  fs::remove_all(folder / "run");
  CHECK(run(tiny_training(folder) + Words{"--quiet"}).out.empty());
}

TEST_CASE("The SSD directories, the trace and an empty run folder are taken where they are named") {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b", "run"}) fs::create_directory(folder / name);
  const Outcome outcome =
      run(tiny_training(folder) + Words{"--json", "--no-export", "--ssd",
                                        folder / "a" + "," + folder / "b", "--trace",
                                        folder / "t.json", "--remove-store"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(json::parse(read_file(folder / "t.json")).contains("traceEvents"));
  CHECK(folder.listing() == Words{"a", "b", "run", "run/config.json", "run/config.toml",
                                  "run/events.out.tfevents.0000000001.spillway", "run/export.lock",
                                  "run/loss.svg", "run/metrics.csv", "run/metrics.jsonl",
                                  "run/model.toml", "run/run.json", "run/run.lock", "t.json",
                                  "text.txt"});
}

TEST_CASE("Ctrl-C ends training after the running step, with everything written") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TemporaryFolder folder;
    Program program(tiny_training(folder) + Words{"--json", "--steps", "1000000"});
    while (program.output().find("\"event\":\"step\"") == std::string::npos && program.running()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    program.send(signal);
    const Outcome outcome = program.wait();
    INFO(outcome.err);
    CHECK(outcome.exit_code == (signal == SIGINT ? 130 : 143));
    CHECK_THAT(outcome.err, Catch::Contains("interrupted"));
    const std::vector<json> events = outcome.json_lines();
    REQUIRE(events.back()["event"] == "end");
    const std::int64_t steps = events.back()["steps"];
    CHECK(steps < 1000000);
    CHECK(steps == std::count_if(events.begin(), events.end(),
                                 [](const json& event) { return event["event"] == "step"; }));
    for (const std::string& file : run_files) CHECK(fs::exists(folder / file));
    CHECK_FALSE(fs::is_empty(folder / "run/ssd"));  // to go on from
    CHECK(run({"validate", folder / "run/trace.json.gz", "--machine", "testbed"}).exit_code == 0);
  }
}
