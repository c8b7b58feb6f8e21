// mpirun -n RANKS spillway train: what several processes train is what one trains, bit by bit;
// whoever is killed loses nothing, and is named.
#include <dirent.h>
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "test_paths.hpp"
#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

Words mpirun(int ranks) {
  // Tests may run as root, on fewer cores than ranks.
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  return {"mpirun", "--oversubscribe", "--bind-to", "none", "-n", std::to_string(ranks)};
}

// Why nothing can be tested here; empty where it can.
std::string why_not() {
  std::istringstream path(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(path, folder, ':');) {
    if (!fs::exists(fs::path(folder) / "mpirun")) continue;
    const fs::path module = fs::path(SPILLWAY_PROGRAM).parent_path() / "libspillway_mpi.so";
    return fs::exists(module) ? "" : "the build has no MPI module";
  }
  return "there is no mpirun (openmpi-bin)";
}

bool is_skipped() {
  const std::string reason = why_not();
  if (!reason.empty()) WARN("skipped: " + reason);
  return !reason.empty();
}

Words training(const TemporaryFolder& folder, const std::string& run, int steps) {
  Words words = tiny_training(folder);
  const auto at = std::find(words.begin(), words.end(), "--run");
  *(at + 1) = folder / run;
  return words + Words{"--steps", std::to_string(steps), "--batch",   "4", "--micro-batch",
                       "1",       "--gradient-clip",     "global=0.5"};
}

json last_event(const fs::path& run) {
  json last;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl")))
    last = json::parse(line);
  return last;
}

// Empty where the process has ended meanwhile.
std::string text_of(const fs::path& file) {
  std::ostringstream text;
  std::ifstream in(file);
  text << in.rdbuf();
  return text.str();
}

// The processes that mpirun has started, by rank; empty while they are not all there.
std::vector<pid_t> ranks_of(pid_t parent, int ranks) {
  std::vector<pid_t> found(static_cast<std::size_t>(ranks), 0);
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string text = text_of(entry.path() / "stat");
    const std::size_t after = text.rfind(')');
    if (after == std::string::npos) continue;
    std::istringstream rest(text.substr(after + 1));
    std::string state;
    pid_t of = 0;
    rest >> state >> of;
    if (of != parent) continue;
    const std::string all = text_of(entry.path() / "environ");
    const std::string key = "OMPI_COMM_WORLD_RANK=";
    const std::size_t at = all.find(key);
    if (at == std::string::npos) continue;
    const auto rank = static_cast<std::size_t>(std::atoi(all.c_str() + at + key.size()));
    if (rank < found.size()) found[rank] = std::atoi(name.c_str());
  }
  const bool all = std::find(found.begin(), found.end(), 0) == found.end();
  return all ? found : std::vector<pid_t>();
}

// Whether the process still runs, a moment after mpirun has ended. One that is dead and that
// nobody has asked for yet, which is for whoever inherits it to do, does not.
bool is_there(pid_t process) {
  for (int tries = 0; tries < 100; ++tries) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string text;
    if (!std::getline(file, text)) return false;
    const std::size_t name_end = text.rfind(')');
    if (name_end != std::string::npos && text.size() > name_end + 2 && text[name_end + 2] == 'Z')
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

// Waits until so many steps are committed; false: the program ended before.
bool wait_for_commit(Program& program, const fs::path& run, int step) {
  while (program.running()) {
    std::error_code error;
    if (fs::exists(run / "metrics.jsonl", error)) {
      for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
        const json event = json::parse(line, nullptr, false);
        if (!event.is_discarded() && event.value("event", "") == "commit" && event["step"] >= step)
          return true;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace

TEST_CASE("ranks: two processes train what one trains in two groups of micro-batches", "[store]") {
  if (is_skipped()) return;
  const TemporaryFolder folder;
  const Outcome one = run(training(folder, "one", 5) +
                          Words{"--gradient-groups", "2", "--policy", "resident", "--quiet"});
  INFO(one.err);
  REQUIRE(one.exit_code == 0);
  for (const char* policy : {"zero-infinity", "greedysnake:snake=off", "resident"}) {
    INFO(policy);
    Outcome two;
    {
      const StartedBy by(mpirun(2));
      two = run(training(folder, "two", 5) + Words{"--policy", policy, "--quiet"});
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
  if (is_skipped()) return;
  const TemporaryFolder folder;
  constexpr int steps = 60;
  const Words with = {"--durability", "step", "--quiet"};
  const Outcome whole = run(training(folder, "one", steps) + with +
                            Words{"--gradient-groups", "2", "--policy", "resident"});
  REQUIRE(whole.exit_code == 0);
  for (const int killed : {1, 0}) {
    INFO("rank " << killed);
    const std::string name = "two-" + std::to_string(killed);
    const StartedBy by(mpirun(2));
    std::vector<pid_t> ranks;
    {
      Program program(training(folder, name, steps) + with);
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
  if (is_skipped()) return;
  const TemporaryFolder folder;
  const int steps = 15 * kills;
  const Words with = {"--durability", "step", "--quiet"};
  const Outcome whole = run(training(folder, "one", steps) + with +
                            Words{"--gradient-groups", "2", "--policy", "resident"});
  REQUIRE(whole.exit_code == 0);
  std::mt19937 random(29);
  const StartedBy by(mpirun(2));
  int killed = 0;
  Words words = training(folder, "two", steps) + with;
  while (killed < kills) {
    Program program(words);
    std::vector<pid_t> ranks;
    while (program.running() && ranks.empty()) ranks = ranks_of(program.process(), 2);
    if (ranks.empty()) {  // all steps are done
      program.wait();
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 900));
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
  const Outcome rest = run({"train", "--run", folder / "two", "--resume", "--quiet"});
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(recorded_losses(folder / "two") == recorded_losses(folder / "one"));
  CHECK(last_event(folder / "two")["weights_hash"] == last_event(folder / "one")["weights_hash"]);
}

}  // namespace

TEST_CASE("ranks: two that are killed a few times train what one trains that is not", "[store]") {
  check_crashes(5);
}

TEST_CASE("ranks: two that are killed two hundred times train what one trains that is not",
          "[store][nightly]") {
  check_crashes(200);
}

TEST_CASE("ranks: a signal stops all after the same step, and they go on from it", "[store]") {
  if (is_skipped()) return;
  const TemporaryFolder folder;
  constexpr int steps = 80;
  const Outcome whole = run(training(folder, "one", steps) +
                            Words{"--gradient-groups", "2", "--policy", "resident", "--quiet"});
  REQUIRE(whole.exit_code == 0);
  const StartedBy by(mpirun(2));
  {
    Program program(training(folder, "two", steps) + Words{"--durability", "step", "--quiet"});
    REQUIRE(wait_for_commit(program, folder / "two", 5));
    const std::vector<pid_t> ranks = ranks_of(program.process(), 2);
    REQUIRE(ranks.size() == 2);
    ::kill(ranks[1], SIGINT);  // one of them is enough
    const Outcome outcome = program.wait();
    INFO(outcome.err);
    const json end = last_event(folder / "two");
    REQUIRE(end["event"] == "end");
    CHECK(end["interrupted"] == true);
    CHECK(end["committed_step"] == end["steps"]);
  }
  const StartedBy again(mpirun(2));
  const Outcome resumed = run({"train", "--run", folder / "two", "--resume", "--quiet"});
  INFO(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  CHECK(recorded_losses(folder / "two") == recorded_losses(folder / "one"));
  CHECK(last_event(folder / "two")["weights_hash"] == last_event(folder / "one")["weights_hash"]);
}

TEST_CASE("ranks: another number of ranks goes on with the state of those before, bit by bit",
          "[store]") {
  if (is_skipped()) return;
  const TemporaryFolder folder;
  const Words one_in_two = {"--gradient-groups", "2", "--policy", "resident", "--quiet"};
  const auto train = [&](int ranks, const Words& words) {
    Outcome outcome;
    if (ranks > 1) {
      const StartedBy by(mpirun(ranks));
      outcome = run(words);
    } else {
      outcome = run(words);
    }
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return outcome;
  };
  const auto go_on = [&](const std::string& name, int ranks, int steps, const Words& more) {
    return train(ranks, Words{"train", "--run", folder / name, "--resume", "--steps",
                              std::to_string(steps)} +
                            more);
  };
  const auto hash = [&](const std::string& name) {
    return last_event(folder / name)["weights_hash"].get<std::string>();
  };
  train(1, training(folder, "one", 6) + one_in_two);

  // Two ranks, then one that adds up in as many groups, then two again: as if it were one all
  // along.
  train(2, training(folder, "two", 2) + Words{"--policy", "zero-infinity", "--quiet"});
  const Outcome by_one = go_on("two", 1, 4, {"--gradient-groups", "2", "--policy", "resident"});
  CHECK(by_one.err.find("from step 2 on with 1 rank, before that with 2 ranks") !=
        std::string::npos);
  // The store of the rank that there is no more is gone, and an export reads the one that is left.
  CHECK(fs::is_empty(folder / "two/ssd/rank-1"));
  train(1, {"export", folder / "two", "--out", folder / "out"});
  go_on("two", 2, 6, {});
  CHECK(hash("two") == hash("one"));
  CHECK(recorded_losses(folder / "two") == recorded_losses(folder / "one"));
  CHECK(read_file(folder / "two/model.safetensors") == read_file(folder / "one/model.safetensors"));

  // Whoever had the state before, four ranks make the same of it.
  train(1, training(folder, "from-one", 3) + one_in_two);
  train(2, training(folder, "from-two", 3) + Words{"--policy", "zero-infinity", "--quiet"});
  for (const char* name : {"from-one", "from-two"}) {
    go_on(name, 4, 6, {"--policy", "zero-infinity"});
    CHECK(hash(name) != hash("one"));  // in four groups since
  }
  CHECK(hash("from-two") == hash("from-one"));
  CHECK(recorded_losses(folder / "from-two") == recorded_losses(folder / "from-one"));
  // And fewer of them. Of one process's store, in the folder above, nothing is left.
  for (const char* name : {"from-one", "from-two"}) go_on(name, 2, 8, {});
  CHECK(hash("from-two") == hash("from-one"));
  for (const char* name : {"from-one", "from-two"}) {
    for (const auto& entry : fs::directory_iterator(folder / name + "/ssd")) {
      INFO(entry.path());
      CHECK(entry.is_directory());
      const bool is_used =
          entry.path().filename() == "rank-0" || entry.path().filename() == "rank-1";
      CHECK(fs::is_empty(entry.path()) != is_used);
    }
  }
}

TEST_CASE("ranks: a change of their number that is killed is made again", "[store]") {
  if (is_skipped()) return;
  const TemporaryFolder folder;
  const Words with = {"--durability", "step", "--quiet"};
  const auto three_steps = [&](const std::string& name) {
    const StartedBy by(mpirun(2));
    const Outcome outcome = run(training(folder, name, 3) + with);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
  };
  const auto go_on = [&](const std::string& name, int ranks) {
    const StartedBy by(mpirun(ranks));
    const Outcome outcome =
        run({"train", "--run", folder / name, "--resume", "--steps", "6", "--quiet"});
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
  };
  three_steps("whole");
  go_on("whole", 4);
  for (int moment = 0; moment < 6; ++moment) {
    INFO("killed at moment " << moment);
    const std::string name = "killed-" + std::to_string(moment);
    three_steps(name);
    {
      const StartedBy by(mpirun(4));
      Program program({"train", "--run", folder / name, "--resume", "--steps", "6", "--quiet"});
      std::vector<pid_t> ranks;
      while (program.running() && ranks.empty()) ranks = ranks_of(program.process(), 4);
      std::this_thread::sleep_for(std::chrono::milliseconds(60 * moment));
      for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
      program.wait();
      for (const pid_t rank : ranks) REQUIRE_FALSE(is_there(rank));
    }
    go_on(name, 4);
    CHECK(recorded_losses(folder / name) == recorded_losses(folder / "whole"));
    CHECK(last_event(folder / name)["weights_hash"] ==
          last_event(folder / "whole")["weights_hash"]);
  }
}

TEST_CASE("ranks: what cannot be done by several is refused by all of them") {
  if (is_skipped()) return;
  const TemporaryFolder folder;
  const StartedBy by(mpirun(2));
  const Outcome kept = run(training(folder, "two", 10) + Words{"--keep", "1", "--keep-every", "2"});
  CHECK(kept.exit_code != 0);
  CHECK(kept.err.find("--keep: several ranks do not do that") != std::string::npos);
  const Outcome uneven = run(training(folder, "two", 2) + Words{"--batch", "5"});
  CHECK(uneven.exit_code != 0);
  CHECK(uneven.err.find("2 ranks do not share a batch of 5 alike") != std::string::npos);
  CHECK_FALSE(fs::exists(folder / "two"));
}
