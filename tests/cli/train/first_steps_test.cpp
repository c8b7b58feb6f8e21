// What somebody who has just installed Spillway types first, without a machine file.
#include <signal.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <thread>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

std::string some_text(const TemporaryFolder& folder) {
  std::string text;
  while (text.size() < 4000) text += "It spills over, and still it runs. ";
  return folder.write("text.txt", text);
}

// A model and data, and nothing that says how to train: at a size that tests can wait for.
Words first_training(const TemporaryFolder& folder, const std::string& run) {
  return {
      "train",        "--model", "gpt-tiny",      "--data", some_text(folder), "--run",      run,
      "--steps",      "2",       "--batch",       "2",      "--json",          "--sequence", "16",
      "--gpu-memory", "64MB",    "--host-memory", "64MB"};
}

json start_of(const Outcome& outcome) {
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json_lines().front();
}

}  // namespace

TEST_CASE("train with a model and data measures this machine once, says so, and goes") {
  const TemporaryFolder folder, cache;
  const KeptMeasurements kept(cache / "not there yet");
  const Outcome first = run(first_training(folder, folder / "first"));
  const json start = start_of(first);
  CHECK_THAT(first.err,
             Catch::StartsWith("--policy auto: measuring this machine for some seconds"));
  CHECK_THAT(first.err, Catch::Contains("measuring 1/"));
  CHECK(start["policy"] != "auto");
  CHECK(start["predicted_step_seconds"] > 0.0);
  CHECK(start["rates"]["measured_seconds"] > 0.0);
  const std::string file = start["rates"]["kept_in"];
  CHECK_THAT(file, Catch::StartsWith(cache / "not there yet/spillway/machine-"));
  struct stat status {};
  REQUIRE(::stat(file.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
  // The run knows its machine, and nothing of the measurement lies about.
  CHECK(fs::exists(folder / "first/machine.toml"));
  CHECK(run({"validate", folder / "first/trace.json.gz"}).exit_code == 0);
  for (const std::string& name : folder.listing()) CHECK(name.find("bench") == std::string::npos);

  const Outcome second = run(first_training(folder, folder / "second"));
  const json again = start_of(second);
  CHECK(second.err.empty());
  CHECK(again["rates"]["measured_seconds"] == 0.0);
  CHECK(again["rates"]["kept_in"] == file);
  CHECK(again["policy"] == start["policy"]);

  // Kernels of another workload are measured; a policy that is named needs no rates.
  const Outcome other = run(first_training(folder, folder / "third") + Words{"--sequence", "8"});
  CHECK(start_of(other)["rates"]["measured_seconds"] > 0.0);
  CHECK(start_of(other)["rates"]["kept_in"] != file);
  const Outcome named =
      run(first_training(folder, folder / "fourth") + Words{"--policy", "resident"});
  CHECK(named.err.empty());
  CHECK_FALSE(start_of(named).contains("rates"));
  CHECK(start_of(named)["predicted_step_seconds"].is_null());
}

TEST_CASE("a cache that cannot be written or was damaged costs a measurement, nothing else") {
  const TemporaryFolder folder, cache;
  const Words quiet = {"--quiet"};
  {
    const KeptMeasurements kept(cache.write("a file", "precious") + "/below");
    const Outcome outcome = run(first_training(folder, folder / "a"));
    CHECK(start_of(outcome)["rates"]["kept_in"].is_null());
    CHECK_THAT(outcome.err, Catch::Contains("not kept for next time: " + cache / "a file/below"));
    CHECK(read_file(cache / "a file") == "precious");
  }
  // A cache that is a link leads nowhere.
  fs::create_directories(cache / "linked");
  fs::create_directories(cache / "elsewhere");
  fs::create_directory_symlink(cache / "elsewhere", cache / "linked/spillway");
  const KeptMeasurements kept(cache / "linked");
  const Outcome outcome = run(first_training(folder, folder / "b") + quiet);
  CHECK(start_of(outcome)["rates"]["kept_in"].is_null());
  CHECK(fs::is_empty(cache / "elsewhere"));
}

TEST_CASE("Ctrl-C while this machine is measured ends with 130, and leaves nothing") {
  const TemporaryFolder folder;
  for (const int signal : {SIGINT, SIGTERM}) {
    // A model whose kernels take a while.
    Program program(first_training(folder, folder / "run") +
                    Words{"--model", "gpt-small", "--batch", "8", "--sequence", "1024"});
    while (program.running() && program.errors().find("measuring 1/") == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    program.send(signal);
    const Outcome outcome = program.wait();
    check_complaint(outcome, signal == SIGINT ? 130 : 143, "interrupted", "nothing is left behind");
    CHECK_THAT(outcome.err, Catch::Contains("this ends before training begins"));
    CHECK(outcome.out.empty());
    CHECK(folder.listing() == Words{"text.txt"});
  }
}

TEST_CASE(
    "a machine with a GPU, where there is none: the CPU trains, and it says what that means") {
  const TemporaryFolder folder;
  const Words words = tiny_training(folder) + Words{"--machine", "h200"};
  const Outcome outcome = run(words);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  std::size_t notes = 0;
  for (const std::string& line : lines_of(outcome.out)) {
    if (line.find("--machine h200 describes a GPU") == std::string::npos) continue;
    ++notes;
    CHECK_THAT(line, Catch::Contains("its limits hold, the CPU trains") &&
                         Catch::Contains("no step time is predicted"));
  }
  CHECK(notes == 1);
  const Outcome events = run(words + Words{"--json", "--run", folder / "again"});
  const json start = start_of(events);
  CHECK_THAT(start["note"].get<std::string>(), Catch::Contains("the CPU trains"));
  CHECK(start["predicted_step_seconds"].is_null());
  CHECK(start["workload"]["precision"] == "fp32");
  CHECK(start["memory"]["gpu"]["capacity_bytes"] == 32'000'000);  // --gpu-memory
}

TEST_CASE("the shape of an earlier run is not taken for going on with it") {
  const TemporaryFolder folder;
  REQUIRE(run(tiny_training(folder) + Words{"--no-export"}).exit_code == 0);
  const Words listing = folder.listing();
  const Words next = {"--run", folder / "next", "--quiet"};
  for (const std::string& model : {folder / "run/model.toml", folder / "run", folder / "run/"}) {
    const Outcome refused = run(tiny_training(folder) + next + Words{"--model", model});
    check_refusal(refused, 2, "--model " + model + " is",
                  "spillway train --resume --run " + folder / "run");
    CHECK_THAT(refused.err, Catch::Contains("an earlier run: only the shape of its model") &&
                                Catch::Contains("from random weights: cp " + folder / "run"));
  }
  CHECK(folder.listing() == listing);
  // What is to be typed can be typed.
  fs::copy(folder / "run", folder / "my 1st run", fs::copy_options::recursive);
  check_refusal(run(tiny_training(folder) + next + Words{"--model", folder / "my 1st run"}), 2,
                "an earlier run", "--resume --run '" + folder / "my 1st run" + "'; to start anew");
  // As it says.
  fs::copy_file(folder / "run/model.toml", folder / "my-model.toml");
  CHECK(run(tiny_training(folder) + next + Words{"--model", folder / "my-model.toml"}).exit_code ==
        0);
  // Other commands only ask for the shape.
  CHECK(run({"estimate", "--model", folder / "run/model.toml", "--machine", "testbed", "--policy",
             "resident"})
            .exit_code == 0);
}

TEST_CASE("what --data skips is told, in JSON too, and --binary-data takes it, also when resumed") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "data");
  fs::copy_file(some_text(folder), folder / "data/text.txt");
  folder.write("data/archive.zip", "PK\x03\x04" + std::string(100, 'x'));
  folder.write("data/.hidden", "secret");
  REQUIRE(::mkfifo((folder / "data/pipe").c_str(), 0600) == 0);
  const Words words = tiny_training(folder, folder / "data");
  const Outcome told = run(words);
  INFO(told.err);
  REQUIRE(told.exit_code == 0);
  CHECK_THAT(told.out, Catch::Contains("in 1 file\n    " + folder / "data/text.txt" +
                                       "\n  3 skipped: " + folder / "data/.hidden" + " (hidden), " +
                                       folder / "data/pipe" + " (a named pipe), " +
                                       folder / "data/archive.zip" + " (a zip archive)\n"));
  const json start = start_of(run(words + Words{"--json", "--run", folder / "again"}));
  CHECK(start["data"]["files"] == 1);
  CHECK(start["data"]["shown"] == json{folder / "data/text.txt"});
  CHECK(start["data"]["bytes"] == fs::file_size(folder / "data/text.txt"));
  CHECK(start["data"]["skipped"]["files"] == 3);
  CHECK(start["data"]["skipped"]["first"].size() == 3);
  check_refusal(
      run(tiny_training(folder, folder / "data/archive.zip") + Words{"--run", folder / "zip"}), 2,
      "archive.zip is a zip archive, not text", "--binary-data");

  const Words all =
      words + Words{"--json", "--run", folder / "all", "--binary-data", "--durability", "step"};
  const json whole = start_of(run(all));
  CHECK(whole["data"]["files"] == 2);
  const Outcome resumed =
      run({"train", "--resume", "--run", folder / "all", "--steps", "3", "--json"});
  CHECK(start_of(resumed)["data"] == whole["data"]);
}
