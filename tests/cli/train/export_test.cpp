// Exporting a run at work, and the checkpoints that a run keeps.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

void wait_for_output(Program& program, const std::string& text) {
  while (program.running() && program.output().find(text) == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

json ran(const Words& arguments) {
  const Outcome outcome = run(arguments);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json_lines().back();
}

Words checkpoints(const TemporaryFolder& folder) {
  Words names;
  for (const std::string& name : folder.listing()) {
    const std::string in = "run/checkpoints/";
    if (name.starts_with(in) && name.find('/', in.size()) == std::string::npos)
      names.push_back(name.substr(in.size()));
  }
  return names;
}

}  // namespace

TEST_CASE("the export of a run at work has the weights of a run that stopped there", "[store]") {
  const TemporaryFolder folder;
  const Words training = tiny_training(folder) + Words{"--json", "--durability", "step"};
  Program program(training + Words{"--steps", "1000000"});
  wait_for_output(program, "\"commit\"");
  const Words words = {"export", folder / "run", "--json", "--out"};
  for (const char* name : {"a", "b"}) {
    const Outcome exported = run(words + Words{folder / name});
    INFO(exported.err);
    REQUIRE(exported.exit_code == 0);
    CHECK(exported.err.find("again") == std::string::npos);
    const std::string step = exported.json()["step"].dump();
    ran(training + Words{"--steps", step, "--run", folder / (std::string("to-") + name)});
    CHECK(read_file(folder / name + "/model.safetensors") ==
          read_file(folder / (std::string("to-") + name) + "/model.safetensors"));
  }
  CHECK(program.running());
  program.send(SIGINT);
  CHECK(program.wait().exit_code == 130);
}

TEST_CASE("an export that is interrupted leaves nothing behind", "[store]") {
  const TemporaryFolder folder;
  ran(tiny_training(folder) + Words{"--json"});
  const std::vector<std::string> before = folder.listing();
  for (const int signal : {SIGINT, SIGTERM}) {
    // The export waits for this lock before it begins.
    const int lock = ::open((folder / "run/export.lock").c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(::flock(lock, LOCK_EX) == 0);
    struct stat status {};
    REQUIRE(::fstat(lock, &status) == 0);
    const std::string waiting = fmt::format(":{} 0 EOF", status.st_ino);
    Program program({"export", folder / "run", "--json"});
    const auto waits = [&] {
      std::ifstream locks("/proc/locks");
      for (std::string line; std::getline(locks, line);)
        if (line.find("->") != std::string::npos && line.find(waiting) != std::string::npos)
          return true;
      return false;
    };
    while (program.running() && !waits()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    program.send(signal);
    ::close(lock);
    const Outcome outcome = program.wait();
    CHECK(outcome.exit_code == 128 + signal);
    CHECK_THAT(outcome.err, Catch::Contains("interrupted while exporting") &&
                                Catch::Contains("nothing is left behind"));
    CHECK(folder.listing() == before);
  }
}

TEST_CASE("a run keeps its last checkpoints, also once it is resumed", "[store]") {
  const TemporaryFolder folder;
  const Words training = tiny_training(folder) + Words{"--json"};
  const Words rhythm = {"--keep", "2", "--keep-every", "3", "--durability", "interval=4"};
  const Outcome first = run(training + rhythm + Words{"--steps", "10"});
  INFO(first.err);
  REQUIRE(first.exit_code == 0);
  // What was predicted counts the commits of the steps that are kept: 3, 4, 6, 8, 9, 10.
  const auto events = first.json_lines();
  CHECK(std::count_if(events.begin(), events.end(),
                      [](const json& event) { return event["event"] == "commit"; }) == 6);
  CHECK(events.front()["wear"]["run_bytes"].get<double>() ==
        Approx(events.back()["ssd_bytes_written"].get<double>()).epsilon(1e-3));
  CHECK(checkpoints(folder) == Words{"step-000006", "step-000009"});
  std::vector<std::int64_t> told;
  for (const json& event : first.json_lines())
    if (event["event"] == "checkpoint") told.push_back(event["step"]);
  CHECK(told == std::vector<std::int64_t>{3, 6, 9});
  ran({"train", "--resume", "--run", folder / "run", "--steps", "15", "--json"});
  CHECK(checkpoints(folder) == Words{"step-000012", "step-000015"});
  ran(training + Words{"--steps", "12", "--run", folder / "to-12"});
  const std::string whole = read_file(folder / "to-12/model.safetensors");
  CHECK(read_file(folder / "run/checkpoints/step-000012/model.safetensors") == whole);
  CHECK(fs::exists(folder / "run/checkpoints/step-000012/config.json"));
  // Also where its store has gone.
  REQUIRE(run({"store", "remove", folder / "run"}).exit_code == 0);
  CHECK(run({"export", folder / "run", "--step", "12", "--json"}).json()["step"] == 12);
  CHECK(read_file(folder / "run/model-step-12/model.safetensors") == whole);
  // A checkpoint is a model like any other.
  ran(tiny_training(folder) +
      Words{"--model", folder / "run/checkpoints/step-000015", "--run", folder / "next", "--json"});
  ran(training + Words{"--steps", "15", "--run", folder / "plain"});
  CHECK(read_file(folder / "run/model.safetensors") ==
        read_file(folder / "plain/model.safetensors"));
}

TEST_CASE("a run that was killed has as many checkpoints as before, and goes on keeping them",
          "[store]") {
  const TemporaryFolder folder;
  const Words training =
      tiny_training(folder) + Words{"--json", "--keep", "2", "--keep-every", "2"};
  {
    Program program(training + Words{"--steps", "1000000"});
    wait_for_output(program, "step-000008");
    program.send(SIGKILL);
    program.wait();
  }
  Words whole;
  for (const std::string& name : checkpoints(folder))
    if (name.front() != '.') whole.push_back(name);
  CHECK(whole.size() >= 2);
  for (const std::string& name : whole)
    CHECK(fs::exists(folder / ("run/checkpoints/" + name + "/model.safetensors")));
  Program program({"train", "--resume", "--run", folder / "run", "--json"});
  wait_for_output(program, "\"checkpoint\"");
  program.send(SIGINT);
  CHECK(program.wait().exit_code == 130);
  CHECK(checkpoints(folder).size() == 2);
}

TEST_CASE("an export that stands still is named to whoever wants the training to end", "[store]") {
  const TemporaryFolder folder;
  const auto begin = [&](const std::string& name) {
    return Program(tiny_training(folder) + Words{"--run", folder / name, "--json", "--durability",
                                                 "step", "--steps", "1000000"});
  };
  const auto wait_for_error = [](Program& program, const std::string& text) {
    while (program.running() && program.errors().find(text) == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  for (const bool once_more : {false, true}) {
    const std::string name = once_more ? "twice" : "once";
    Program program = begin(name);
    wait_for_output(program, "\"commit\"");
    const int lock = ::open((folder / (name + "/export.lock")).c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(::flock(lock, LOCK_SH) == 0);
    // Until it makes no more steps.
    std::size_t before = 0;
    for (int still = 0; still < 10; ++still) {
      const std::size_t now = program.output().size();
      if (now != before) still = 0;
      before = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    program.send(SIGINT);
    wait_for_error(program, "waiting for an export of this run");
    CHECK(program.running());
    CHECK_THAT(program.errors(), Catch::Contains(name + "/export.lock") &&
                                     Catch::Contains("once more ends it at once"));
    if (once_more) {
      program.send(SIGINT);
      CHECK(program.wait().signal == SIGINT);
    }
    ::close(lock);
    if (!once_more) CHECK(program.wait().exit_code == 130);
  }
}

TEST_CASE("a store is not removed while an export reads it", "[store]") {
  const TemporaryFolder folder;
  ran(tiny_training(folder) + Words{"--json", "--ssd", folder.path().string(), "--no-export"});
  const int lock = ::open((folder / "run/export.lock").c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(::flock(lock, LOCK_SH) == 0);
  const std::vector<std::string> before = folder.listing();
  for (const std::string& named : {folder / "run", folder.path().string()})
    check_refusal(run({"store", "remove", named}), 1, "an export reads", "fuser");
  CHECK(folder.listing() == before);
  ::close(lock);
  CHECK(run({"store", "remove", folder / "run"}).exit_code == 0);
  CHECK(folder.listing().size() < before.size());
}

TEST_CASE("checkpoints stay where a run stops keeping them, and empty folders are none",
          "[store]") {
  const TemporaryFolder folder;
  const Words training = tiny_training(folder) + Words{"--json"};
  const Words resume = {"train", "--resume", "--run", folder / "run", "--json", "--steps"};
  ran(training + Words{"--keep", "2", "--keep-every", "2", "--steps", "4"});
  CHECK(checkpoints(folder) == Words{"step-000002", "step-000004"});
  ran(resume + Words{"6", "--keep", "0"});
  CHECK(checkpoints(folder) == Words{"step-000002", "step-000004"});
  // A folder with nothing in it is no checkpoint, and no hindrance.
  fs::create_directory(folder / "run/checkpoints/step-000008");
  fs::create_directory(folder / "run/checkpoints/step-000010");
  CHECK(run({"export", folder / "run", "--step", "10"}).exit_code == 2);
  ran(resume + Words{"8", "--keep", "4"});
  CHECK(fs::exists(folder / "run/checkpoints/step-000002/model.safetensors"));
  CHECK(fs::exists(folder / "run/checkpoints/step-000008/model.safetensors"));
}

TEST_CASE("what --keep could not do is refused before training") {
  const TemporaryFolder folder;
  const auto refused = [&](const Words& words, const std::string& message,
                           const std::string& hint) {
    check_refusal(run(tiny_training(folder) + words), 2, message, hint);
    CHECK_FALSE(fs::exists(folder / "run"));
  };
  refused({"--keep", "1"}, "--keep-every 500: the training has 2 steps", "--keep-every 1");
  refused({"--keep", "-1"}, "--keep -1", "");
  refused({"--keep-every", "1"}, "--keep-every 1: no checkpoint is kept", "--keep 3");
  refused({"--keep", "1", "--keep-every", "0"}, "--keep-every 0", "");
  refused({"--keep", "1", "--keep-every", "1", "--durability", "off"},
          "--keep writes what is committed", "leave --durability or --keep out");
}

TEST_CASE(
    "a drive without room for the checkpoints is noticed before training, or costs one of them",
    "[store]") {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() / "disk", "24m");
  if (!disk.mounted()) {
    WARN("skipped: " << disk.why_not());
    return;
  }
  fs::create_directory(folder / "ssd");
  const Words words =
      tiny_training(folder) + Words{"--run",  folder / "disk/run", "--ssd",        folder / "ssd",
                                    "--json", "--no-export",       "--keep-every", "1"};
  check_refusal(run(words + Words{"--keep", "9"}), 1, "the trained weights need", "--keep");
  // It fills up while training runs.
  Program program(words + Words{"--keep", "2", "--steps", "1000000"});
  wait_for_output(program, "\"checkpoint\"");
  std::ofstream filler(folder / "disk/filler", std::ios::binary);
  const std::string piece(1 << 16, 'x');
  while (filler.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) {
  }
  wait_for_output(program, "\"error\"");
  CHECK(program.running());
  CHECK_THAT(program.errors(), Catch::Contains("no checkpoint of step"));
  filler.close();
  fs::remove(folder / "disk/filler");
  program.send(SIGINT);
  CHECK(program.wait().exit_code == 130);
}
