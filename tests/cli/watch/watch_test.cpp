// spillway runs and spillway watch: runs seen from outside, while they train and afterwards.
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <thread>

#include "test_paths.hpp"
#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

Words training(const TemporaryFolder& folder, const std::string& name, const std::string& steps) {
  return tiny_training(folder) +
         Words{"--quiet", "--no-export", "--run", folder / "runs/" + name, "--steps", steps};
}

// Waits until a run has made `steps` steps.
void wait_for_steps(Program& program, const std::string& run, std::size_t steps) {
  const auto written = [&] {
    const std::string text = read_file(fs::path(run) / "metrics.jsonl");
    std::size_t found = 0;
    for (std::size_t at = 0; (at = text.find("\"event\":\"step\"", at)) != std::string::npos; ++at)
      ++found;
    return found;
  };
  while (program.running() && (!fs::exists(fs::path(run) / "metrics.jsonl") || written() < steps))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

std::map<std::string, json> runs_in(const TemporaryFolder& folder) {
  std::map<std::string, json> runs;
  const json listed = run({"runs", folder / "runs", "--json"}).json();
  for (const json& one : listed["runs"]) runs[one["run"]] = one;
  return runs;
}

// What the program writes to a terminal of so many columns.
std::string on_terminal(Words arguments, unsigned short columns) {
  arguments.insert(arguments.begin(), SPILLWAY_PROGRAM);
  std::vector<char*> argv;
  for (std::string& word : arguments) argv.push_back(word.data());
  argv.push_back(nullptr);
  const winsize size{24, columns, 0, 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  REQUIRE(child >= 0);
  if (child == 0) {
    ::execv(argv.front(), argv.data());
    ::_exit(127);
  }
  std::string text;
  char piece[4096];
  for (ssize_t got = 0; (got = ::read(terminal, piece, sizeof piece)) > 0;)
    text.append(piece, static_cast<std::size_t>(got));
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  return text;
}

}  // namespace

TEST_CASE("runs lists what is running, done, stopped and crashed") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "runs");
  CHECK_THAT(run({"runs", folder / "runs"}).out, Catch::StartsWith("there are no runs in"));
  REQUIRE(run(training(folder, "done", "2")).exit_code == 0);
  {
    Program stopped(training(folder, "stopped", "1000000"));
    wait_for_steps(stopped, folder / "runs/stopped", 2);
    CHECK(runs_in(folder)["stopped"]["state"] == "running");
    stopped.send(SIGINT);
    stopped.wait();
    Program crashed(training(folder, "crashed", "1000000"));
    wait_for_steps(crashed, folder / "runs/crashed", 2);
    crashed.send(SIGKILL);
    crashed.wait();
  }
  const std::map<std::string, json> runs = runs_in(folder);
  REQUIRE(runs.size() == 3);
  for (const auto& [name, one] : runs) {
    INFO(name);
    CHECK(one["state"] == name);
    CHECK(one["model"] == "gpt-tiny");
    CHECK(one["policy"] == "zero-infinity");
    CHECK(one["steps"] == (name == "done" ? 2 : 1000000));
    CHECK(one["steps_done"] >= 2);
    CHECK(one["loss"] > 0.0);
    CHECK(one["tokens_per_second"] > 0.0);
    CHECK(one["evaluation_loss"].is_null());
  }
  CHECK(runs.at("done")["steps_done"] == 2);
  const Outcome table = run({"runs", folder / "runs"});
  CHECK(table.exit_code == 0);
  const Words lines = lines_of(table.out);
  REQUIRE(lines.size() == 4);
  CHECK_THAT(lines[0], Catch::StartsWith("run      state    model     policy") &&
                           Catch::Contains("tokens/s"));
  CHECK_THAT(table.out, Catch::Contains("done     done     gpt-tiny  zero-infinity  ") &&
                            Catch::Contains(" 2/2 "));
  check_refusal(run({"runs", folder / "nowhere"}), 2, "nowhere", "");
}

TEST_CASE("watch follows a run to its end, and leaves it alone when it is ended itself") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "runs");
  const std::string path = folder / "runs/a";
  Program trained(training(folder, "a", "1000000"));
  wait_for_steps(trained, path, 1);
  Program left({"watch", path}), followed({"watch", path, "--json"}), shown({"watch", path});
  while (followed.output().find("\"event\":\"step\"") == std::string::npos && followed.running())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  while (left.errors().empty() && left.running())  // a signal that comes too soon just ends it
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  left.send(SIGINT);
  CHECK(left.wait().exit_code == 130);
  const std::string so_far = followed.output();
  wait_for_steps(trained, path,
                 static_cast<std::size_t>(std::count(so_far.begin(), so_far.end(), '\n')) + 5);
  CHECK(trained.running());
  CHECK(followed.running());
  trained.send(SIGINT);
  REQUIRE(trained.wait().exit_code == 130);
  const Outcome events = followed.wait(), text = shown.wait();
  CHECK(events.exit_code == 0);
  // All that the run has written, and nothing twice.
  CHECK(events.out == read_file(path + "/metrics.jsonl"));
  CHECK(text.exit_code == 0);
  CHECK_THAT(text.out, Catch::StartsWith("stopped, ") && Catch::Contains("of 1000000 steps, loss"));
  CHECK_THAT(text.err, Catch::Contains("/1000000  loss"));
  // It has ended: what it came to is shown at once.
  CHECK(run({"watch", path}).out == text.out);
  check_complaint(run({"watch", folder / "runs"}), 2, "there is no run", "folder of a run");
}

TEST_CASE("Half-written and foreign lines in metrics do not trouble runs and watch") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "runs");
  REQUIRE(run(training(folder, "a", "2")).exit_code == 0);
  const std::string file = folder / "runs/a/metrics.jsonl";
  const std::string before = read_file(file);
  std::ofstream(file)
      << "\xff\xfe no JSON\n{\"event\":\"step\",\"step\":1e99,\"loss\":\"x\"}\n[[[[[\n"
      << before << "{\"event\":\"st";
  CHECK(runs_in(folder)["a"]["steps_done"] == 2);
  CHECK(run({"watch", folder / "runs/a", "--json"}).out == before);
  CHECK_THAT(run({"watch", folder / "runs/a"}).out, Catch::StartsWith("done, 2 of 2 steps, loss"));
  fs::remove(file);
  fs::create_symlink("/etc/passwd", file);
  CHECK(runs_in(folder)["a"]["state"] == "unknown");
  check_complaint(run({"watch", folder / "runs/a"}), 2, "metrics.jsonl", "");
}

TEST_CASE("On a terminal the line of a training is as long as the terminal is wide, at most") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "runs");
  Words arguments = tiny_training(folder) + Words{"--no-export", "--steps", "3"};
  const std::string text = on_terminal(arguments, 50);
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find("\rstep ", at)) != std::string::npos; ++at) {
    const std::size_t end = text.find_first_of("\r\n", at + 1);
    CHECK(end - at - 1 < 50);
    ++found;
  }
  CHECK(found >= 2);  // the first and the last step
  CHECK_THAT(text, Catch::Contains("\rstep 1/3  loss ") && !Catch::Contains("ssd r "));
  // As wide as it takes, the links are there.
  fs::remove_all(folder / "run");
  CHECK_THAT(on_terminal(arguments, 400), Catch::Contains("  ssd r ") && Catch::Contains("  lr 1"));
}

TEST_CASE("watch draws a curve on a terminal") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "runs");
  REQUIRE(run(training(folder, "a", "12")).exit_code == 0);
  const std::string text = on_terminal({"watch", folder / "runs/a"}, 70);
  CHECK(std::count(text.begin(), text.end(), '*') >= 8);
  CHECK_THAT(text, Catch::Contains("step 12/12  loss") && Catch::Contains("done, 12 of 12 steps"));
}

TEST_CASE("A training closes with a table, and leaves a table, a picture and scalars") {
  const TemporaryFolder folder;
  const Outcome outcome =
      run(tiny_training(folder) + Words{"--steps", "4", "--machine", "testbed"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  for (const char* line : {"\n  steps       4 of 4, 128 tokens\n", "\n  loss        ",
                           "\n  time        0:0", "\n  speed       ", " tokens/s",
                           "\n  step        ", "\n  memory      gpu ", "\n  ssd         "})
    CHECK_THAT(outcome.out, Catch::Contains(line));
  CHECK(lines_of(read_file(folder / "run/metrics.csv")).size() == 1 + 4);
  CHECK_THAT(read_file(folder / "run/loss.svg"), Catch::Contains("gpt-tiny, run</text>"));
  CHECK(read_file(folder / "run/events.out.tfevents.0000000001.spillway").substr(0, 8) ==
        std::string("\x18\0\0\0\0\0\0\0", 8));
  // A run that goes on has one event file with all steps, and an empty one.
  const Outcome more =
      run({"train", "--resume", "--run", folder / "run", "--steps", "6", "--json"});
  INFO(more.err);
  REQUIRE(more.exit_code == 0);
  CHECK(lines_of(read_file(folder / "run/metrics.csv")).size() == 1 + 6);
  CHECK(fs::file_size(folder / "run/events.out.tfevents.0000000001.spillway") == 40);
  CHECK(fs::exists(folder / "run/events.out.tfevents.0000000002.spillway"));
}

TEST_CASE("Evaluations are told while training, and once each where a run goes on") {
  const TemporaryFolder folder;
  std::string records;
  for (int i = 0; i < 60; ++i)
    records += "{\"text\": \"record " + std::to_string(i * i) + " of a small corpus\"}\n";
  const Words arguments = tiny_training(folder, folder.write("records.jsonl", records)) +
                          Words{"--validation", "10", "--evaluate-every", "2", "--no-export"};
  const auto evaluations = [](const std::string& run) {
    std::vector<json> found;
    for (const std::string& line : lines_of(read_file(fs::path(run) / "metrics.jsonl"))) {
      json event = json::parse(line);
      event.erase("seconds");
      if (event["event"] == "evaluation") found.push_back(std::move(event));
    }
    return found;
  };
  const Outcome whole = run(arguments + Words{"--steps", "8", "--run", folder / "whole"});
  INFO(whole.err);
  REQUIRE(whole.exit_code == 0);
  const std::vector<json> all = evaluations(folder / "whole");
  REQUIRE(all.size() == 5);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i]["step"] == 2 * i);
    CHECK(all[i]["tokens"] > 0);
    CHECK(all[i]["perplexity"].get<double>() == Approx(std::exp(all[i]["loss"].get<double>())));
  }
  CHECK(all.back()["loss"] < all.front()["loss"]);
  CHECK_THAT(whole.out, Catch::Contains("\nevaluation after 0 steps: loss ") &&
                            Catch::Contains("\n  evaluation  "));
  CHECK_THAT(read_file(folder / "whole/loss.svg"), Catch::Contains("evaluation loss"));
  // The evaluation at the end of the first part is not one of the whole.
  REQUIRE(run(arguments + Words{"--steps", "5", "--run", folder / "parts"}).exit_code == 0);
  CHECK(evaluations(folder / "parts").back()["step"] == 5);
  REQUIRE(run({"train", "--resume", "--run", folder / "parts", "--steps", "8"}).exit_code == 0);
  CHECK(evaluations(folder / "parts") == all);
  CHECK(recorded_losses(folder / "parts") == recorded_losses(folder / "whole"));
  CHECK(lines_of(read_file(folder / "parts/metrics.csv")).size() == 1 + 8 + 5);
  CHECK(run({"runs", folder.path().string(), "--json"}).json()["runs"][0]["evaluation_loss"] ==
        all.back()["loss"]);
}

TEST_CASE("Power and clock of a GPU are in the events of its steps", "[emulated]") {
  setenv("SPILLWAY_CUDA_MODULE", SPILLWAY_EMULATED_MODULE, 1);
  const fs::path library = SPILLWAY_FAKE_NVML;
  const auto train = [](const TemporaryFolder& folder) {
    return run(tiny_training(folder) + Words{"--set", "model.layers=2", "--set", "model.hidden=32",
                                             "--device", "cuda", "--precision", "fp32",
                                             "--gpu-memory", "256MB", "--json", "--no-export"});
  };
  const TemporaryFolder without_library, with_library;
  const Outcome none = train(without_library);
  setenv("LD_LIBRARY_PATH", library.parent_path().c_str(), 1);
  const Outcome measured = train(with_library);
  unsetenv("LD_LIBRARY_PATH");
  unsetenv("SPILLWAY_CUDA_MODULE");
  INFO(none.err << measured.err);
  REQUIRE(none.exit_code == 0);
  REQUIRE(measured.exit_code == 0);
  for (const json& event : none.json_lines()) CHECK_FALSE(event.contains("gpu_power_watts"));
  std::size_t steps = 0;
  for (const json& event : measured.json_lines()) {
    if (event["event"] != "step") continue;
    ++steps;
    CHECK(event["gpu_power_watts"] >= 100.0);
    CHECK(event["gpu_clock_mhz"] == 1980.0);
  }
  CHECK(steps == 2);
}
