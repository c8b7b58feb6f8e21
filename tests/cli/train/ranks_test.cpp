// mpirun -n RANKS spillway train: what several processes train is what one trains, bit by bit;
// whoever is killed loses nothing, and is named.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "tests/cli/train/ranks.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

TEST_CASE("ranks: two processes train what one trains in two groups of micro-batches", "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const Outcome one = run(rank_training(folder, "one", 5) +
                          Words{"--gradient-groups", "2", "--policy", "resident", "--quiet"});
  INFO(one.err);
  REQUIRE(one.exit_code == 0);
  for (const char* policy : {"zero-infinity", "greedysnake:snake=off", "resident"}) {
    INFO(policy);
    Outcome two;
    {
      const StartedBy by(mpirun(2));
      two = run(rank_training(folder, "two", 5) + Words{"--policy", policy, "--quiet"});
    }
    INFO(two.err);
    REQUIRE(two.exit_code == 0);
    CHECK(recorded_losses(folder / "two") == recorded_losses(folder / "one"));
    CHECK(last_event(folder / "two")["weights_hash"] == last_event(folder / "one")["weights_hash"]);
    CHECK(read_file(folder / "two/model.safetensors") ==
          read_file(folder / "one/model.safetensors"));
    // A store each, below the run's folder.
    CHECK(fs::exists(folder / "two/ssd/rank-0"));
    CHECK(fs::exists(folder / "two/ssd/rank-1"));
    // And both are read.
    const Outcome export_again = run({"export", folder / "two", "--out", folder / "out"});
    INFO(export_again.err);
    CHECK(export_again.exit_code == 0);
    fs::remove_all(folder / "two");
    fs::remove_all(folder / "out");
  }
}

TEST_CASE("ranks: a process that is killed is named, ends all others, and loses nothing",
          "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  constexpr int steps = 60;
  const Words with = {"--durability", "step", "--quiet"};
  const Outcome whole = run(rank_training(folder, "one", steps) + with +
                            Words{"--gradient-groups", "2", "--policy", "resident"});
  REQUIRE(whole.exit_code == 0);
  for (const int killed : {1, 0}) {
    INFO("rank " << killed);
    const std::string name = "two-" + std::to_string(killed);
    const StartedBy by(mpirun(2));
    std::vector<pid_t> ranks;
    {
      Program program(rank_training(folder, name, steps) + with);
      REQUIRE(wait_for_commit(program, folder / name, 10));
      ranks = ranks_of(program.process(), 2);
      REQUIRE(ranks.size() == 2);
      ::kill(ranks[static_cast<std::size_t>(killed)], SIGKILL);
      const Outcome outcome = program.wait();
      INFO(outcome.err);
      CHECK(outcome.exit_code != 0);
      CHECK(outcome.err.find("rank " + std::to_string(killed) + " (process ") != std::string::npos);
      CHECK(outcome.err.find("has died") != std::string::npos);
    }
    for (const pid_t rank : ranks) CHECK_FALSE(is_there(rank));
    const Outcome resumed = run({"train", "--run", folder / name, "--resume", "--quiet"});
    INFO(resumed.err);
    REQUIRE(resumed.exit_code == 0);
    CHECK(recorded_losses(folder / name) == recorded_losses(folder / "one"));
    CHECK(last_event(folder / name)["weights_hash"] == last_event(folder / "one")["weights_hash"]);
  }
}

namespace {

// Kills so many times, one rank or both, from the moment at which they are there to long after they
// train, and holds what came of it against one process that was left alone.
void check_crashes(int kills) {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const int steps = 15 * kills;
  const Words with = {"--durability", "step", "--quiet"};
  const Outcome whole = run(rank_training(folder, "one", steps) + with +
                            Words{"--gradient-groups", "2", "--policy", "resident"});
  REQUIRE(whole.exit_code == 0);
  std::mt19937 random(29);
  const StartedBy by(mpirun(2));
  int killed = 0;
  // As long as ranks take here until they train, twice.
  std::int64_t longest = 900;
  Words words = rank_training(folder, "two", steps) + with;
  while (killed < kills) {
    Program program(words);
    std::vector<pid_t> ranks;
    while (program.running() && ranks.empty()) ranks = ranks_of(program.process(), 2);
    if (ranks.empty()) {  // all steps are done
      program.wait();
      break;
    }
    if (killed == 1) {
      const auto began = std::chrono::steady_clock::now();
      REQUIRE(wait_for_commit(program, folder / "two", 1));
      const std::chrono::duration<double, std::milli> start =
          std::chrono::steady_clock::now() - began;
      longest = std::max(longest, static_cast<std::int64_t>(2 * start.count()));
    } else {
      const auto delay = static_cast<std::int64_t>(random()) % longest;
      std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    }
    const auto which = random() % 3;  // the second means both
    if (which != 1) ::kill(ranks[0], SIGKILL);
    if (which != 0) ::kill(ranks[1], SIGKILL);
    const Outcome outcome = program.wait();
    for (const pid_t rank : ranks) REQUIRE_FALSE(is_there(rank));
    if (outcome.exit_code != 0) ++killed;
    // Before a run's folder is there it is begun again.
    if (fs::exists(folder / "two/run.json"))
      words = {"train", "--run", folder / "two", "--resume", "--quiet"};
  }
  CHECK(killed > kills / 2);
  const Outcome rest = run(words);
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(recorded_losses(folder / "two") == recorded_losses(folder / "one"));
  CHECK(last_event(folder / "two")["weights_hash"] == last_event(folder / "one")["weights_hash"]);
}

}  // namespace

TEST_CASE("ranks: two that are killed a few times train what one trains that is not",
          "[store][slow]") {
  check_crashes(5);
}

TEST_CASE("ranks: two that are killed two hundred times train what one trains that is not",
          "[store][nightly]") {
  check_crashes(200);
}

TEST_CASE("ranks: a signal stops all after the same step, and they go on from it", "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  constexpr int steps = 80;
  const Outcome whole = run(rank_training(folder, "one", steps) +
                            Words{"--gradient-groups", "2", "--policy", "resident", "--quiet"});
  REQUIRE(whole.exit_code == 0);
  const StartedBy by(mpirun(2));
  {
    Program program(rank_training(folder, "two", steps) + Words{"--durability", "step", "--quiet"});
    REQUIRE(wait_for_commit(program, folder / "two", 5));
    const std::vector<pid_t> ranks = ranks_of(program.process(), 2);
    REQUIRE(ranks.size() == 2);
    ::kill(ranks[1], SIGINT);  // one of them is enough
    check_stopped(program, folder / "two");
  }
  const StartedBy again(mpirun(2));
  const Outcome resumed = run({"train", "--run", folder / "two", "--resume", "--quiet"});
  INFO(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  CHECK(recorded_losses(folder / "two") == recorded_losses(folder / "one"));
  CHECK(last_event(folder / "two")["weights_hash"] == last_event(folder / "one")["weights_hash"]);
}

TEST_CASE("ranks: what cannot be done by several is refused by all of them") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const StartedBy by(mpirun(2));
  const Outcome guarded = run(rank_training(folder, "two", 10) + Words{"--spike-guard", "3"});
  CHECK(guarded.exit_code != 0);
  CHECK(guarded.err.find("--spike-guard: several ranks do not do that") != std::string::npos);
  const Outcome uneven = run(rank_training(folder, "two", 2) + Words{"--batch", "5"});
  CHECK(uneven.exit_code != 0);
  CHECK(uneven.err.find("2 ranks do not share a batch of 5 alike") != std::string::npos);
  CHECK_FALSE(fs::exists(folder / "two"));
}
