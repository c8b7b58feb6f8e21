// spillway generate, spillway chat.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

// A run of a few steps on bytes.
std::string trained(const TemporaryFolder& folder, const Words& more = {}) {
  const Outcome outcome = run(tiny_training(folder) + Words{"--quiet"} + more);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return folder / "run";
}

json answers(const Words& arguments) {
  const Outcome outcome = run(Words{"generate"} + arguments + Words{"--json", "--tokens", "9"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return json::parse(outcome.out).at("answers");
}

}  // namespace

TEST_CASE("an answer is the same from a run and from what it exports, alone and beside others") {
  const TemporaryFolder folder;
  const std::string at = trained(folder);
  REQUIRE(run({"export", at, "--out", folder / "model"}).exit_code == 0);
  const json first = answers({at, "--prompt", "It ", "--prompt", "spills over and"});
  REQUIRE(first.size() == 2);
  CHECK(first[0].at("tokens").size() == 9);
  CHECK(first[0].at("prompt_tokens") == 3);
  CHECK(answers({folder / "model", "--prompt", "It "})[0].at("tokens") == first[0].at("tokens"));
  CHECK(answers({at, "--prompt", "It ", "--seed", "7"})[0].at("tokens") != first[0].at("tokens"));
  const Words greedy = {at, "--prompt", "It ", "--temperature", "0", "--seed"};
  CHECK(answers(greedy + Words{"1"}) == answers(greedy + Words{"2"}));
}

TEST_CASE("adapters answer beside their model, and as a part of it") {
  const TemporaryFolder folder;
  const std::string at = trained(folder);
  REQUIRE(run({"export", at, "--out", folder / "model"}).exit_code == 0);
  const Outcome tuned =
      run(tiny_training(folder) + Words{"--model", folder / "model", "--lora", "rank=4", "--run",
                                        folder / "tuned", "--learning-rate", "0.01", "--quiet"});
  INFO(tuned.err);
  REQUIRE(tuned.exit_code == 0);
  const Words prompt = {"--prompt", "and it ", "--temperature", "0"};
  const json of_run = answers(Words{folder / "tuned"} + prompt);
  CHECK(of_run == answers(Words{folder / "model", "--adapter", folder / "tuned"} + prompt));
  REQUIRE(run({"export", folder / "tuned", "--out", folder / "adapters"}).exit_code == 0);
  CHECK(of_run == answers(Words{folder / "adapters"} + prompt));
}

TEST_CASE("what cannot answer says why") {
  const TemporaryFolder folder;
  check_refusal(run({"generate", folder / "nowhere", "--prompt", "a"}), 2,
                "there is no such folder", "config.json");
  const std::string at = trained(folder, {"--no-export"});
  check_refusal(run({"generate", at, "--prompt", "a"}), 2, "has not written its weights",
                "spillway export");
  REQUIRE(run({"export", at, "--out", folder / "model"}).exit_code == 0);
  const std::string model = folder / "model";
  check_refusal(run({"generate", model, "--prompt", "a", "--chat"}), 2, "no chat template is known",
                "chatml");
  check_refusal(run({"generate", model, "--prompt", "a", "--host-memory", "10kB"}), 2, "memory",
                "--host-memory");
  check_refusal(run({"generate", model, "--prompt", "a", "--top-p", "2"}), 2, "--top-p 2", "");
  check_refusal(run({"generate", model, "--prompt", ""}), 2, "a prompt has no token", "text");
}
