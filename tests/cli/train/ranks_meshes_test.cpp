// Ranks whose policy shares out model states among some of them, each shard on several: what they
// commit, what is read of it, and what goes on with it.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/cli/train/ranks.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

// Four ranks in two groups, each of which has all of the states.
const Words in_groups = {"--policy", "mics:group=2x1"};
const Words as_in_groups = {"--policy", "resident",          "--gradient-groups",
                            "4",        "--gradient-meshes", "state=2,gradients=2"};

// Two micro-batches a rank.
Words training(const TemporaryFolder& folder, const std::string& name, int steps) {
  Words words = rank_training(folder, name, steps);
  *(std::find(words.rbegin(), words.rend(), "--batch") - 1) = "8";  // the last one counts
  return words + Words{"--quiet"};
}

Words resumed(const std::string& run, int steps) {
  return {"train", "--run", run, "--resume", "--steps", std::to_string(steps), "--quiet"};
}

void check_same(const fs::path& a, const fs::path& b) {
  INFO(a << ", " << b);
  CHECK(recorded_losses(a) == recorded_losses(b));
  CHECK(last_event(a)["weights_hash"] == last_event(b)["weights_hash"]);
  CHECK(read_file(a / "model.safetensors") == read_file(b / "model.safetensors"));
}

}  // namespace

TEST_CASE("ranks: groups that are replicas commit, are killed, and go on as one process",
          "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  constexpr int steps = 30;
  const Words each_step = {"--durability", "step"};
  succeed(1, training(folder, "one", steps) + each_step + as_in_groups);
  succeed(4, training(folder, "whole", steps) + each_step + in_groups);
  check_same(folder / "whole", folder / "one");
  succeed(1, {"export", folder / "whole", "--out", folder / "out"});
  for (const int killed : {3, 0}) {
    const std::string name = "killed-" + std::to_string(killed);
    INFO(name);
    {
      const StartedBy by(mpirun(4));
      Program program(training(folder, name, steps) + each_step + in_groups);
      REQUIRE(wait_for_commit(program, folder / name, 5));
      const std::vector<pid_t> ranks = ranks_of(program.process(), 4);
      REQUIRE(ranks.size() == 4);
      ::kill(ranks[static_cast<std::size_t>(killed)], SIGKILL);
      const Outcome outcome = program.wait();
      CHECK(outcome.err.find("rank " + std::to_string(killed) + " (process ") != std::string::npos);
    }
    succeed(4, resumed(folder / name, steps));
    check_same(folder / name, folder / "one");
  }
}

TEST_CASE("ranks: a stop is agreed on where they meet in groups", "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  constexpr int steps = 400;
  {
    const StartedBy by(mpirun(4));
    Program program(training(folder, "run", steps) + Words{"--durability", "interval=5"} +
                    in_groups);
    REQUIRE(wait_for_commit(program, folder / "run", 5));
    ::kill(program.process(), SIGTERM);
    check_stopped(program, folder / "run");
  }
  const auto step = last_event(folder / "run")["steps"].get<int>();
  REQUIRE(step < steps);
  succeed(4, resumed(folder / "run", step + 3));
  succeed(1, training(folder, "one", step + 3) + as_in_groups);
  check_same(folder / "run", folder / "one");
}

TEST_CASE("ranks: another number of ranks goes on from shards of groups", "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  succeed(1, training(folder, "from-one", 3) + as_in_groups);
  succeed(4, training(folder, "from-four", 3) + in_groups);
  for (const char* name : {"from-one", "from-four"}) {
    succeed(2, resumed(folder / name, 5) + Words{"--policy", "zero-infinity"});
    succeed(4, resumed(folder / name, 7) + Words{"--policy", "fsdp"});
  }
  check_same(folder / "from-four", folder / "from-one");
  // As many ranks that would add up otherwise have other bits.
  const Outcome other = run_by(4, resumed(folder / "from-four", 9) + in_groups);
  CHECK(other.exit_code == 2);
  CHECK(other.err.find("as --gradient-meshes says it, is state=2,gradients=2, but the training to "
                       "go on with has state=4,gradients=4") != std::string::npos);
  CHECK(other.err.find("use policy fsdp") != std::string::npos);
  const Outcome given = run_by(
      4, resumed(folder / "from-four", 9) + Words{"--gradient-meshes", "state=4,gradients=4"});
  CHECK(given.exit_code == 2);
  CHECK(given.err.find("several ranks have those of their policy") != std::string::npos);
  // One process that is not asked to add up as they did says so.
  Words words = resumed(folder / "from-four", 9);
  words.pop_back();
  const Outcome alone = run(words);
  CHECK(alone.exit_code == 0);
  CHECK(alone.err.find("the last bits of the weights are others") != std::string::npos);
}
