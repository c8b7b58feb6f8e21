// A run that was killed, interrupted or finished early goes on where it was committed, and what is
// committed can be looked at.
#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

const Words all_on_ssd = {"--policy", "greedysnake:optimizer_ssd=1,snake=off", "--no-export",
                          "--json"};

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++found;
  return found;
}

// Trains until `count_of` events are printed, commits unless said otherwise, then sends the signal.
Outcome ended_by(const Words& arguments, std::size_t count_of, int signal,
                 const char* event = "\"commit\"") {
  Program program(arguments);
  while (program.running() && count(program.output(), event) < count_of)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  program.send(signal);
  return program.wait();
}

}  // namespace

TEST_CASE("a killed run goes on with --resume and nothing else, to the same losses and weights",
          "[store]") {
  const TemporaryFolder folder;
  const Words arguments = tiny_training(folder) + all_on_ssd + Words{"--steps", "40"};
  const Outcome whole = run(arguments + Words{"--run", folder / "whole"});
  REQUIRE(whole.exit_code == 0);
  CHECK(ended_by(arguments, 5, SIGKILL).signal == SIGKILL);
  const Outcome again =
      ended_by({"train", "--resume", "--run", folder / "run", "--json"}, 5, SIGKILL);
  CHECK(again.signal == SIGKILL);
  CHECK(json::parse(lines_of(again.out).front())["first_step"] >= 5);
  // The last part under another policy.
  const Outcome rest = run({"train", "--resume", "--run", folder / "run", "--json", "--policy",
                            "zero-infinity", "--durability", "interval=3"});
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(recorded_losses(folder / "run") == recorded_losses(folder / "whole"));
  CHECK(rest.json_lines().back()["weights_hash"] == whole.json_lines().back()["weights_hash"]);
  // Its state stays, until it is removed on purpose.
  check_refusal(run({"train", "--resume", "--run", folder / "run"}), 2, "at step 40 already",
                "larger --steps");
  const Outcome last = run(
      {"train", "--resume", "--run", folder / "run", "--steps", "41", "--json", "--remove-store"});
  INFO(last.err);
  REQUIRE(last.exit_code == 0);
  CHECK(fs::is_empty(folder / "run/ssd"));
  check_refusal(run({"train", "--resume", "--run", folder / "run", "--steps", "50"}), 2,
                "removed on purpose", "another run");
}

TEST_CASE("Ctrl-C finishes the running step and commits it", "[store]") {
  const TemporaryFolder folder;
  const Outcome stopped =
      ended_by(tiny_training(folder) + all_on_ssd + Words{"--steps", "5000"}, 2, SIGINT);
  INFO(stopped.err);
  REQUIRE(stopped.exit_code == 130);
  const std::vector<json> events = stopped.json_lines();
  CHECK(events.back()["interrupted"] == true);
  const std::int64_t steps = events.back()["steps"];
  CHECK(steps < 5000);
  CHECK(events.back()["committed_step"] == steps);
  const std::string kept = "stopped after " + std::to_string(steps) + " of 5000 steps; step " +
                           std::to_string(steps) + " is committed in " + folder / "run/ssd" +
                           "\n  to go on: spillway train --resume --run " + folder / "run" + "\n";
  CHECK_THAT(stopped.err, Catch::EndsWith(kept));
  CHECK(events[events.size() - 2]["event"] == "commit");
  CHECK(events[events.size() - 2]["step"] == steps);
  const Outcome inspected = run({"store", "inspect", folder / "run", "--json"});
  REQUIRE(inspected.exit_code == 0);
  const json store = inspected.json()["stores"][0];
  CHECK(store["step"] == steps);
  CHECK(store["verified"] == true);
  CHECK(store["bad_chunks"].empty());
  CHECK(store["state_bytes"]["ssd"] > 0);
}

TEST_CASE("a finished run can be trained further", "[store]") {
  const TemporaryFolder folder;
  const Words arguments = tiny_training(folder) + all_on_ssd;
  const Outcome whole = run(arguments + Words{"--steps", "7", "--run", folder / "whole"});
  REQUIRE(run(arguments + Words{"--steps", "4"}).exit_code == 0);
  check_refusal(run({"train", "--resume", "--run", folder / "run"}), 2, "at step 4 already",
                "larger --steps");
  const Outcome more =
      run({"train", "--resume", "--run", folder / "run", "--steps", "7", "--json"});
  INFO(more.err);
  REQUIRE(more.exit_code == 0);
  CHECK(more.json_lines().back()["weights_hash"] == whole.json_lines().back()["weights_hash"]);
}

TEST_CASE("what one --resume is given holds for the next", "[store]") {
  const TemporaryFolder folder;
  REQUIRE(run(tiny_training(folder) + all_on_ssd + Words{"--steps", "4"}).exit_code == 0);
  // More steps, another policy and a limit that it needs.
  const Words resume = {"train", "--resume", "--run", folder / "run", "--json"};
  const Outcome killed =
      ended_by(resume + Words{"--steps", "5000", "--policy", "zero-offload", "--gpu-memory", "48MB",
                              "--durability", "interval=2"},
               3, SIGKILL);
  REQUIRE(killed.signal == SIGKILL);
  const Outcome again = ended_by(resume, 3, SIGINT);
  INFO(again.err);
  REQUIRE(again.exit_code == 130);
  const json start = again.json_lines().front();
  CHECK(start["steps"] == 5000);
  CHECK_THAT(start["policy"].get<std::string>(), Catch::StartsWith("zero-offload"));
  CHECK(start["memory"]["gpu"]["capacity_bytes"] == 48'000'000);
  CHECK(start["durability"]["commit_every"] == 2);
}

TEST_CASE("a run without commits, or whose store was removed, is not begun anew by --resume",
          "[store]") {
  const TemporaryFolder folder;
  const Words resume = {"train", "--resume", "--run", folder / "run"};
  const Outcome stopped =
      ended_by(tiny_training(folder) + Words{"--policy", "resident", "--durability", "off",
                                             "--json", "--steps", "100000"},
               1, SIGINT, "\"event\":\"step\"");
  REQUIRE(stopped.exit_code == 130);
  CHECK(stopped.json_lines().back()["committed_step"].is_null());
  CHECK_THAT(
      stopped.err,
      Catch::Contains("with --durability off there is nothing to resume from") &&
          Catch::EndsWith("the weights so far are in " + folder / "run/model.safetensors" + "\n"));
  CHECK(fs::exists(folder / "run/model.safetensors"));
  check_refusal(run(resume), 2, "it was made without durability", "start another run");
  fs::remove_all(folder / "run");
  REQUIRE(ended_by(tiny_training(folder) + all_on_ssd + Words{"--steps", "5000"}, 2, SIGINT)
              .exit_code == 130);
  const std::size_t steps = recorded_losses(folder / "run").size();
  REQUIRE(run({"store", "remove", folder / "run"}).exit_code == 0);
  check_refusal(run(resume), 2, "its store was removed", "start another run");
  CHECK(recorded_losses(folder / "run").size() == steps);
}

TEST_CASE("a store is removed as a whole or not at all", "[store]") {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) fs::create_directory(folder / name);
  REQUIRE(run(tiny_training(folder) + all_on_ssd +
              Words{"--steps", "3", "--ssd", folder / "a" + "," + folder / "b"})
              .exit_code == 0);
  fs::rename(folder / "b", folder / "away");
  check_refusal(run({"store", "remove", folder / "run"}), 2, "nothing was removed", "mounted");
  fs::rename(folder / "away", folder / "b");
  CHECK(run({"store", "inspect", folder / "run"}).exit_code == 0);
  REQUIRE(run({"store", "remove", folder / "run"}).exit_code == 0);
  CHECK(fs::is_empty(folder / "a"));
  CHECK(fs::is_empty(folder / "b"));
}

TEST_CASE("a flipped bit in committed state is found, named, and never trained on", "[store]") {
  const TemporaryFolder folder;
  REQUIRE(run(tiny_training(folder) + all_on_ssd + Words{"--steps", "4"}).exit_code == 0);
  const std::string file = folder / "run/ssd/spillway-store-0.bin";
  {
    // Version 4 lies in the first copies, which begin the file.
    std::fstream store(file, std::ios::in | std::ios::out | std::ios::binary);
    store.seekg(8192 + 4099);
    const char byte = static_cast<char>(store.get() ^ 4);
    store.seekp(8192 + 4099);
    store.put(byte);
  }
  const Outcome inspected = run({"store", "inspect", folder / "run"});
  CHECK(inspected.exit_code == 1);
  CHECK_THAT(inspected.out, Catch::Contains(file) && Catch::Contains("offset 8192"));
  const Outcome resumed = run({"train", "--resume", "--run", folder / "run", "--steps", "9"});
  check_complaint(resumed, 1, "are not what was written there", "smartctl");
  REQUIRE(run({"store", "remove", folder / "run"}).exit_code == 0);
  CHECK_FALSE(fs::exists(file));
}

TEST_CASE("what cannot be resumed says why", "[store]") {
  const TemporaryFolder folder;
  check_refusal(run({"train", "--resume"}), 2, "which run", "--run DIR");
  check_refusal(run({"train", "--resume", "--run", folder / "absent"}), 2, "there is no run",
                "--run DIR");
  check_refusal(run(tiny_training(folder) + Words{"--durability", "often"}), 2,
                "--durability often", "leave it out");
  check_refusal(run(tiny_training(folder) + Words{"--durability", "interval=0"}), 2,
                "not a positive number of steps", "interval=20");
  check_refusal(run({"store", "inspect", folder.path().string()}), 2, "there is no store in",
                "name the folder of a run");
  // Changed text, seed, shape: not the same training.
  const Words arguments = tiny_training(folder) + all_on_ssd;
  REQUIRE(run(arguments + Words{"--steps", "4"}).exit_code == 0);
  const Words again = {"train", "--resume", "--run", folder / "run", "--steps", "9"};
  check_refusal(run(again + Words{"--seed", "7"}), 2, "--seed is 7", "leave the option out");
  check_refusal(run(again + Words{"--batch", "4"}), 2, "--batch is 4", "leave the option out");
  // A second run does not write over the first one's state.
  check_refusal(run(arguments + Words{"--run", folder / "other", "--ssd", folder / "run/ssd"}), 2,
                "holds another training, committed at step 4", "spillway store remove");
  folder.write("text.txt", std::string(5000, 'a'));
  check_refusal(run(again), 2, "--data", "leave the option out");
}
