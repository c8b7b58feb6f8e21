// Text for people, help, and a standard output that cannot be written to.
#include <catch2/catch.hpp>
#include <regex>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;

namespace {

const Words commands = {"calibrate", "estimate", "fit",   "simulate", "compare", "sweep",   "train",
                        "validate",  "papers",   "bench", "policies", "models",  "machines"};

// Off a terminal nothing is coloured and no line is rewritten.
void check_plain(const std::string& text) {
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
}

Words simulation(const char* command) {
  return Words{command, "--machine", "testbed", "--policy", "zero-infinity"} + tiny_problem();
}

}  // namespace

TEST_CASE("option --help explains the program and every command, --version names it") {
  const Outcome help = run({"--help"});
  CHECK(help.exit_code == 0);
  CHECK(help.err.empty());
  for (const std::string& command : commands) {
    CHECK_THAT(help.out, Catch::Contains("\n  " + command + " "));
    const Outcome one = run({command, "--help"});
    INFO(command);
    CHECK(one.exit_code == 0);
    CHECK(one.err.empty());
    CHECK_THAT(one.out, Catch::Contains(command) && Catch::Contains("--help"));
    check_plain(one.out);
  }
  const Outcome version = run({"--version"});
  CHECK(version.exit_code == 0);
  CHECK_THAT(version.out, Catch::Matches("spillway [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST_CASE("The help of a command names its options and their defaults") {
  const std::string train = run({"train", "--help"}).out;
  for (const char* option : {"--model", "--data", "--policy", "--steps", "--batch", "--micro-batch",
                             "--sequence", "--gpu-memory", "--host-memory", "--ssd", "--run",
                             "--seed", "--device", "--trace", "--gradient-clip", "--json"}) {
    CHECK_THAT(train, Catch::Contains(option));
  }
  CHECK(std::regex_search(train, std::regex("--steps [^\n]*100")));
}

TEST_CASE("Text for people is plain and complete off a terminal") {
  const Outcome simulated = run(simulation("simulate"));
  CHECK(simulated.exit_code == 0);
  CHECK(simulated.err.empty());
  check_plain(simulated.out);
  for (const char* word : {"step", "tokens/s", "bound", "ssd written", "gpu.compute", "ssd.write",
                           "critical path:", "gpu idle", "ssd.read optimizer state"}) {
    CHECK_THAT(simulated.out, Catch::Contains(word));
  }
  const Outcome estimated = run(simulation("estimate"));
  CHECK_THAT(estimated.out, Catch::Contains("\nfits: ") && Catch::Contains("a day"));
  const Outcome compared = run(Words{"compare", "--machine", "testbed"} + tiny_problem());
  check_plain(compared.out);
  CHECK_THAT(compared.out, Catch::Contains("<- fastest") && Catch::Contains("greedysnake"));
  CHECK_THAT(compared.out, Catch::Contains("the gpu waits most for") &&
                               Catch::Contains("ssd.write optimizer state"));
  for (const char* list : {"policies", "models", "machines"}) {
    const Outcome outcome = run({list});
    CHECK(outcome.exit_code == 0);
    check_plain(outcome.out);
  }
  CHECK_THAT(run({"policies"}).out, Catch::Contains("zero-infinity"));
  CHECK_THAT(run({"models"}).out, Catch::Contains("gpt-tiny"));
  CHECK_THAT(run({"machines"}).out, Catch::Contains("testbed"));
}

TEST_CASE("simulate writes a trace, a graph and an explanation") {
  const TemporaryFolder folder;
  const std::string trace = folder / "t.json", compressed = folder / "t.json.gz",
                    graph = folder / "g.dot";
  CHECK(run(simulation("simulate") + Words{"--trace", trace, "--dot", graph}).exit_code == 0);
  CHECK(run(simulation("simulate") + Words{"--trace", compressed}).exit_code == 0);
  CHECK(nlohmann::json::parse(read_file(trace)).contains("traceEvents"));
  CHECK(read_file(compressed).substr(0, 2) == "\x1f\x8b");
  CHECK_THAT(read_file(graph), Catch::StartsWith("digraph"));
  CHECK(folder.listing() == Words{"g.dot", "t.json", "t.json.gz"});
  CHECK_THAT(run(simulation("simulate") + Words{"--explain"}).out, Catch::Contains("forward"));
}

TEST_CASE("The last of two values wins, so that a setting can be added to a command") {
  const nlohmann::json result =
      run(simulation("simulate") + Words{"--json", "--batch", "4", "--batch", "6"}).json();
  CHECK(result["workload"]["batch"] == 6);
}

TEST_CASE("Output that cannot be written is a failure with a message, never a signal") {
  const TemporaryFolder folder;
  const std::vector<Words> runs = {
      {"--help"},
      {"--version"},
      {"train", "--help"},
      {"policies"},
      {"models", "--json"},
      simulation("simulate"),
      simulation("estimate") + Words{"--json"},
      Words{"compare", "--machine", "testbed", "--json"} + tiny_problem(),
      tiny_training(folder),
      tiny_training(folder) + Words{"--json"}};
  const std::vector<std::pair<Output, std::string>> outputs = {
      {Output::full_device, "No space left on device"}, {Output::closed, "Bad file descriptor"}};
  for (const Words& command : runs) {
    for (const auto& [output, why] : outputs) {
      INFO(command.front() << " " << command.back() << ": " << why);
      check_complaint(run(command, output), 1, "cannot write to standard output: " + why, "");
      // Training notices before its first step, and leaves nothing.
      CHECK(folder.listing() == Words{"text.txt"});
    }
  }
}

TEST_CASE("A reader that has had enough, as head has, ends the program quietly and well") {
  for (const Words& command :
       {Words{"--help"}, Words{"policies"}, Words{"models", "--json"}, simulation("simulate"),
        simulation("simulate") + Words{"--explain"}, simulation("estimate") + Words{"--json"},
        Words{"compare", "--machine", "testbed"} + tiny_problem()}) {
    INFO(command.front() << " " << command.back());
    const Outcome outcome = run(command, Output::pipe_without_reader);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.err.empty());
  }
}

TEST_CASE("What does not fit still says so where nobody reads the output") {
  const Outcome outcome = run(simulation("simulate") + Words{"--json", "--gpu-memory", "1kB"},
                              Output::pipe_without_reader);
  CHECK(outcome.exit_code == 3);
}

TEST_CASE("A training goes on to its end when nobody reads its output any more") {
  for (const Words& how : {Words{}, Words{"--json"}}) {
    const TemporaryFolder folder;
    const Outcome outcome = run(tiny_training(folder) + how, Output::pipe_without_reader);
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK(recorded_losses(folder / "run").size() == 2);
    for (const char* name : {"model.safetensors", "trace.json.gz"})
      CHECK(std::filesystem::exists(folder / "run" + "/" + name));
  }
}
