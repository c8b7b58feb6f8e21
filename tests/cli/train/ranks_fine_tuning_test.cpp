// What people fine-tune with, by several processes: adapters, the last layers, evaluations, what is
// kept of them, samples. All of it is what one process has.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/cli/train/ranks.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

// One process with the sums of two.
const Words as_two = {"--policy", "resident", "--gradient-groups", "2"};

Words tuning(const TemporaryFolder& folder, const std::string& run, const Words& how) {
  return rank_training(folder, run, 6) +
         Words{"--model", folder / "base", "--learning-rate", "0.1", "--quiet"} + how;
}

Words resumed(const std::string& run, const Words& how) {
  return Words{"train", "--run", run, "--resume", "--quiet"} + how;
}

// Of a training, what does not depend on how fast it was.
std::vector<json> events(const fs::path& run) {
  std::vector<json> found;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    const json event = json::parse(line);
    for (const char* name : {"evaluation", "best", "sample"}) {
      if (event["event"] != name) continue;
      json& one = found.emplace_back();
      for (const char* key : {"event", "step", "loss", "text", "prompt"})
        if (event.contains(key)) one[key] = event[key];
    }
  }
  return found;
}

}  // namespace

TEST_CASE("ranks: adapters and last layers are those of one process, and merge into its weights",
          "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  exported_model(folder, "base", "1");
  for (const Words& what : {Words{"--lora", "rank=8,dropout=0.1"}, Words{"--train-layers", "1"}}) {
    const bool adapters = what.front() == "--lora";
    const char* const weights = adapters ? "adapter_model.safetensors" : "model.safetensors";
    succeed(1, tuning(folder, "one", what + as_two));
    const Words merge = adapters ? Words{"--merge"} : Words{};
    succeed(1, Words{"export", folder / "one", "--out", folder / "of-one"} + merge);
    // What is frozen rests on each rank's GPU, in shards there, in host memory, or is read in
    // place from the model's own file.
    for (const char* policy : {"resident", "zero-infinity:parameters=host", "greedysnake:snake=off",
                               "spillway:parameters.rest=ssd:1"}) {
      INFO(what.front() << ", " << policy);
      succeed(2, tuning(folder, "two", what + Words{"--policy", policy}));
      CHECK(recorded_losses(folder / "two") == recorded_losses(folder / "one"));
      CHECK(read_file(fs::path(folder / "two") / weights) ==
            read_file(fs::path(folder / "one") / weights));
      succeed(1, Words{"export", folder / "two", "--out", folder / "of-two"} + merge);
      CHECK(read_file(folder / "of-two/model.safetensors") ==
            read_file(folder / "of-one/model.safetensors"));
      fs::remove_all(folder / "two");
      fs::remove_all(folder / "of-two");
    }
    fs::remove_all(folder / "one");
    fs::remove_all(folder / "of-one");
  }
}

TEST_CASE("ranks: adapters are killed, moved, and gone on with by another number of processes",
          "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  exported_model(folder, "base", "1");
  exported_model(folder, "other", "2");
  const Words lora = {"--lora", "rank=16,dropout=0.1"};
  const Words in_place = {"--policy", "spillway:parameters.rest=ssd:1", "--durability", "step"};
  const Words on_the_ssd = lora + in_place;
  succeed(1, tuning(folder, "one", lora + as_two + Words{"--steps", "30"}));
  {
    const StartedBy by(mpirun(2));
    Program program(tuning(folder, "run", on_the_ssd + Words{"--steps", "30"}));
    REQUIRE(wait_for_commit(program, folder / "run", 3));
    const std::vector<pid_t> ranks = ranks_of(program.process(), 2);
    REQUIRE(ranks.size() == 2);
    ::kill(ranks[1], SIGKILL);
    program.wait();
  }
  const Outcome refused = run_by(2, resumed(folder / "run", {"--model", folder / "other"}));
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("are not those that the run began with") != std::string::npos);
  fs::rename(folder / "base", folder / "moved");
  // As one process does it with their sums, and then as two again.
  succeed(1, resumed(folder / "run", Words{"--model", folder / "moved", "--steps", "12"} + as_two));
  succeed(2, resumed(folder / "run", {"--steps", "30", "--policy", "resident"}));
  CHECK(recorded_losses(folder / "run") == recorded_losses(folder / "one"));
  CHECK(read_file(folder / "run/adapter_model.safetensors") ==
        read_file(folder / "one/adapter_model.safetensors"));
  succeed(4, resumed(folder / "run", {"--steps", "32", "--policy", "fsdp"}));
  succeed(1, {"export", folder / "run", "--merge", "--out", folder / "merged"});
}

TEST_CASE("ranks: evaluations, the best weights, kept checkpoints and samples are as one's",
          "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  std::string text;
  for (int line = 0; line < 400; ++line)
    text += "the bell rings " + std::to_string(line * line) + " times\n";
  const auto training = [&](const char* name, int steps) {
    return rank_training(folder, name, steps) + Words{"--data",
                                                      folder.write("bells.txt", text),
                                                      "--validation",
                                                      "5%",
                                                      "--evaluate-every",
                                                      "5",
                                                      "--evaluate-batches",
                                                      "2",
                                                      "--keep-best",
                                                      "--keep",
                                                      "2",
                                                      "--keep-every",
                                                      "5",
                                                      "--sample-prompt",
                                                      "the bell",
                                                      "--sample-every",
                                                      "8",
                                                      "--sample-tokens",
                                                      "6",
                                                      "--quiet"};
  };
  succeed(1, training("one", 20) + as_two);
  for (const char* policy : {"zero-infinity", "zero"}) {
    INFO(policy);
    const bool shards = std::string(policy) == "zero";
    if (shards) {
      fs::remove_all(folder / "one");
      succeed(1, training("one", 20) + as_two + Words{"--gradient-meshes", "gradients=2"});
    }
    succeed(2, training("two", 20) + Words{"--policy", policy});
    CHECK(events(folder / "two") == events(folder / "one"));
    CHECK(events(folder / "two").size() > 8);
    for (const char* file : {"best/model.safetensors", "checkpoints/step-000015/model.safetensors",
                             "checkpoints/step-000020/model.safetensors", "model.safetensors"})
      CHECK(read_file(fs::path(folder / "two") / file) ==
            read_file(fs::path(folder / "one") / file));
    fs::remove_all(folder / "two");
  }
}

TEST_CASE("ranks: a stop while samples are written ends all, and they go on from it", "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const Words sampled = {"--sample-prompt", "the bell", "--sample-every",  "4",
                         "--sample-tokens", "2000",     "--learning-rate", "0.01",
                         "--quiet"};
  succeed(1, rank_training(folder, "one", 8) + as_two + sampled);
  {
    const StartedBy by(mpirun(2));
    Program program(rank_training(folder, "two", 8) + Words{"--durability", "step"} + sampled);
    // The fourth step is committed, and the next begins after thousands of tokens.
    REQUIRE(wait_for_commit(program, folder / "two", 4));
    const std::vector<pid_t> ranks = ranks_of(program.process(), 2);
    REQUIRE(ranks.size() == 2);
    ::kill(ranks[1], SIGINT);
    check_stopped(program, folder / "two");
  }
  succeed(2, resumed(folder / "two", {}));
  CHECK(recorded_losses(folder / "two") == recorded_losses(folder / "one"));
  CHECK(last_event(folder / "two")["weights_hash"] == last_event(folder / "one")["weights_hash"]);
}

TEST_CASE("ranks: what several do not do is refused where a run that goes on has it") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const Words words = rank_training(folder, "run", 3) + Words{"--quiet"};
  succeed(1, words + Words{"--spike-guard", "3"});
  const Outcome refused = run_by(2, resumed(folder / "run", {"--steps", "6"}));
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("turn it off (--spike-guard 0)") != std::string::npos);
  succeed(2, resumed(folder / "run", {"--steps", "6", "--spike-guard", "0"}));
  CHECK(recorded_losses(folder / "run").size() == 6);
}

TEST_CASE("ranks: all end where evaluations do not get better, also after a kill", "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const auto training = [&](const char* name) {
    return rank_training(folder, name, 400) +
           Words{"--validation",    "20%",          "--evaluate-every", "5",
                 "--learning-rate", "0.3",          "--early-stop",     "2",
                 "--keep-best",     "--durability", "interval=3",       "--quiet"};
  };
  succeed(1, training("one") + as_two);
  const json end = last_event(folder / "one");
  CHECK(end["ended_early"] == true);
  REQUIRE(end["steps"] < 400);
  {
    const StartedBy by(mpirun(2));
    Program program(training("two"));
    REQUIRE(wait_for_commit(program, folder / "two", 6));
    const std::vector<pid_t> ranks = ranks_of(program.process(), 2);
    for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    program.wait();
  }
  succeed(2, resumed(folder / "two", {}));
  CHECK(events(folder / "two") == events(folder / "one"));
  CHECK(last_event(folder / "two")["ended_early"] == true);
  CHECK(read_file(folder / "two/best/model.safetensors") ==
        read_file(folder / "one/best/model.safetensors"));
}
