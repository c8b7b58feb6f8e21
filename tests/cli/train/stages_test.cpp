// mpirun -n STAGES spillway train --pipeline STAGES: what the stages of a pipeline train is what
// one process trains, bit by bit; whoever is killed loses nothing.
#include <signal.h>

#include <catch2/catch.hpp>

#include "tests/cli/train/ranks.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

const Words in_two = {"--pipeline", "2", "--quiet"};

void check_same(const fs::path& one, const fs::path& other) {
  CHECK(recorded_losses(one) == recorded_losses(other));
  CHECK(last_event(one)["weights_hash"] == last_event(other)["weights_hash"]);
}

}  // namespace

TEST_CASE("stages: two processes train what one trains, wherever their state rests", "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const Outcome one =
      run(rank_training(folder, "one", 5) + Words{"--policy", "resident", "--quiet"});
  INFO(one.err);
  REQUIRE(one.exit_code == 0);
  for (const char* policy : {"gpipe", "1f1b:parameters=ssd,optimizer_state=ssd,checkpoints=ssd",
                             "interleaved", "zb-h1", "zero-infinity"}) {
    INFO(policy);
    Outcome two;
    {
      const StartedBy by(mpirun(2));
      two = run(rank_training(folder, "two", 5) + in_two + Words{"--policy", policy});
    }
    INFO(two.err);
    REQUIRE(two.exit_code == 0);
    check_same(folder / "two", folder / "one");
    CHECK(read_file(folder / "two/model.safetensors") ==
          read_file(folder / "one/model.safetensors"));
    // Each stage has a store of its own; together they are the model.
    const Outcome export_again = run({"export", folder / "two", "--out", folder / "out"});
    INFO(export_again.err);
    CHECK(export_again.exit_code == 0);
    CHECK(read_file(folder / "out/model.safetensors") ==
          read_file(folder / "one/model.safetensors"));
    fs::remove_all(folder / "two");
    fs::remove_all(folder / "out");
  }
}

TEST_CASE("stages: what is killed or stopped goes on as one process would have trained",
          "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  constexpr int steps = 60;
  const Words with = {"--durability", "step", "--policy", "1f1b"};
  const Outcome whole =
      run(rank_training(folder, "one", steps) + Words{"--policy", "resident", "--quiet"});
  REQUIRE(whole.exit_code == 0);
  const StartedBy by(mpirun(2));
  for (const int signal : {SIGKILL, SIGINT}) {
    for (const int to : {0, 1}) {
      INFO("signal " << signal << " to stage " << to);
      const std::string name = "two-" + std::to_string(signal) + "-" + std::to_string(to);
      {
        Program program(rank_training(folder, name, steps) + in_two + with);
        REQUIRE(wait_for_commit(program, folder / name, 10));
        const std::vector<pid_t> stages = ranks_of(program.process(), 2);
        REQUIRE(stages.size() == 2);
        ::kill(stages[static_cast<std::size_t>(to)], signal);
        CHECK(program.wait().exit_code != 0);
        for (const pid_t stage : stages) CHECK_FALSE(is_there(stage));
      }
      if (signal == SIGINT) CHECK(last_event(folder / name)["interrupted"] == true);
      const Outcome resumed = run({"train", "--run", folder / name, "--resume", "--quiet"});
      INFO(resumed.err);
      REQUIRE(resumed.exit_code == 0);
      check_same(folder / name, folder / "one");
    }
  }
}

TEST_CASE("stages: where one needs another store all of them make one, and the run goes on") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const Words in_four = {"--pipeline", "4", "--durability", "step"};
  const Outcome whole =
      run(rank_training(folder, "one", 6) + Words{"--policy", "resident", "--quiet"});
  REQUIRE(whole.exit_code == 0);
  const StartedBy by(mpirun(4));
  // Checkpoints of the first two stages are on the SSD, those of the others never had to leave.
  const Outcome first = run(rank_training(folder, "four", 3) + in_four +
                            Words{"--policy", "zb-h1:checkpoints=ssd", "--quiet"});
  INFO(first.err);
  REQUIRE(first.exit_code == 0);
  const Outcome resumed = run({"train", "--run", folder / "four", "--resume", "--policy", "zb-h1",
                               "--steps", "6", "--quiet"});
  INFO(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  check_same(folder / "four", folder / "one");
}

TEST_CASE("stages: a pipeline has as many processes as stages, from its first step to its last") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const auto refused = [&](int processes, const Words& words) {
    std::optional<StartedBy> by;
    if (processes > 1) by.emplace(mpirun(processes));
    const Outcome outcome = run(words);
    CHECK(outcome.exit_code != 0);
    return outcome.err;
  };
  const Words training = rank_training(folder, "two", 2) + in_two;
  CHECK_THAT(refused(1, training), Catch::Contains("2 stages of a pipeline are as many processes"));
  CHECK_THAT(refused(3, training), Catch::Contains("3 processes train, each a stage of it"));
  CHECK_FALSE(fs::exists(folder / "two"));
  {
    const StartedBy by(mpirun(2));
    REQUIRE(run(training + Words{"--policy", "1f1b"}).exit_code == 0);
  }
  const Words more = {"train", "--run", folder / "two", "--resume", "--steps", "3", "--quiet"};
  CHECK_THAT(refused(1, more), Catch::Contains("trained in 2 stages of a pipeline"));
  CHECK_THAT(refused(3, more), Catch::Contains("trained in 2 stages of a pipeline"));
  CHECK_THAT(refused(2, more + Words{"--policy", "interleaved"}),
             Catch::Contains("have 2 runs of layers each"));
}
