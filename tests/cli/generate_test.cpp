// spillway generate, spillway chat.
#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

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

TEST_CASE("a run answers from what it has committed", "[store]") {
  const TemporaryFolder folder;
  const std::string at = trained(folder, {"--no-export"});
  const Words prompt = {"--prompt", "and it "};
  const json committed = answers(Words{at} + prompt);
  CHECK(answers(Words{at, "--host-memory", "3MB"} + prompt) == committed);
  const Outcome shown = run(Words{"generate", at} + prompt);
  CHECK(shown.err.find("gpt-tiny: step 2, committed; bytes") != std::string::npos);
  REQUIRE(run({"export", at, "--out", folder / "model"}).exit_code == 0);
  CHECK(answers(Words{folder / "model"} + prompt) == committed);
  const Outcome tuned = run(tiny_training(folder) +
                            Words{"--model", folder / "model", "--lora", "rank=4", "--run",
                                  folder / "tuned", "--learning-rate", "0.01", "--no-export"});
  REQUIRE(tuned.exit_code == 0);
  const json beside = answers(Words{folder / "tuned"} + prompt);
  CHECK(beside != committed);
  REQUIRE(run({"export", folder / "tuned", "--out", folder / "adapters"}).exit_code == 0);
  CHECK(answers(Words{folder / "adapters"} + prompt) == beside);
}

TEST_CASE("a run at work answers, and trains on as if nobody had asked", "[store][slow]") {
  const TemporaryFolder folder;
  Program training(tiny_training(folder) + Words{"--steps", "400", "--json"});
  while (training.running() && training.output().find("\"commit\"") == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  int asked = 0;
  for (; asked < 3; ++asked) {
    const Outcome answer = run({"generate", folder / "run", "--prompt", "It ", "--tokens", "3"});
    INFO(answer.err);
    REQUIRE(answer.exit_code == 0);
    if (answer.err.find("committed") == std::string::npos) break;  // it has ended
  }
  CHECK(asked > 0);
  CHECK(training.wait().exit_code == 0);
  const Outcome undisturbed =
      run(tiny_training(folder) + Words{"--steps", "400", "--run", folder / "other", "--quiet"});
  REQUIRE(undisturbed.exit_code == 0);
  CHECK(recorded_losses(folder / "run") == recorded_losses(folder / "other"));
}

TEST_CASE("a run's folder has the tokenizer and the template that it is told") {
  const TemporaryFolder folder;
  const std::string text =
      folder.write("words.txt", std::string(200, 'a') + " spills over and over");
  REQUIRE(run({"tokenizer", "train", text, "--out", folder / "tokens", "--vocabulary", "300",
               "--special", "<|im_start|>", "--special", "<|im_end|>"})
              .exit_code == 0);
  const Outcome outcome = run(tiny_training(folder) +
                              Words{"--model", "llama-tiny", "--tokenizer", folder / "tokens",
                                    "--chat-template", "chatml", "--set", "model.vocabulary=320",
                                    "--steps", "2", "--keep", "1", "--keep-every", "1"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  REQUIRE(run({"export", folder / "run", "--out", folder / "model"}).exit_code == 0);
  for (const std::string& at :
       {folder / "run", folder / "model", folder / "run/checkpoints/step-000002"}) {
    INFO(at);
    const json config = json::parse(read_file(at + "/config.json"));
    CHECK(config.at("eos_token_id").size() == 2);  // of a text, and of a turn
    CHECK(read_file(at + "/chat_template.jinja").find("<|im_start|>") != std::string::npos);
    const Outcome answer =
        run({"generate", at, "--chat", "--prompt", "Hi", "--tokens", "2", "--json"});
    INFO(answer.err);
    REQUIRE(answer.exit_code == 0);
    CHECK(answer.json().at("answers")[0].at("prompt_tokens") ==
          run({"generate", folder / "run", "--chat", "--prompt", "Hi", "--tokens", "2", "--json"})
              .json()
              .at("answers")[0]
              .at("prompt_tokens"));
  }
  // From a folder whose makers knew of no turns.
  const Outcome bare = run(tiny_training(folder) +
                           Words{"--model", "llama-tiny", "--set", "model.vocabulary=320", "--run",
                                 folder / "bare", "--tokenizer", folder / "tokens", "--quiet"});
  REQUIRE(bare.exit_code == 0);
  const auto ends_in = [&](const std::string& file) {
    return json::parse(read_file(folder / file)).at("eos_token_id");
  };
  CHECK(ends_in("bare/config.json").is_number());
  const Outcome tuned =
      run(tiny_training(folder) + Words{"--model", folder / "bare", "--run", folder / "tuned",
                                        "--chat-template", "chatml", "--quiet"});
  INFO(tuned.err);
  REQUIRE(tuned.exit_code == 0);
  CHECK(ends_in("tuned/config.json") == ends_in("bare/config.json"));
  CHECK(ends_in("tuned/generation_config.json") == ends_in("run/config.json"));
  CHECK(read_file(folder / "tuned/chat_template.jinja") ==
        read_file(folder / "run/chat_template.jinja"));
  // Adapters bring theirs into the model that they become a part of.
  const Outcome beside =
      run(tiny_training(folder) + Words{"--model", folder / "bare", "--run", folder / "beside",
                                        "--lora", "rank=2", "--chat-template", "chatml"});
  INFO(beside.err);
  REQUIRE(beside.exit_code == 0);
  REQUIRE(run({"export", folder / "beside", "--merge", "--out", folder / "one"}).exit_code == 0);
  REQUIRE(run({"merge", "--model", folder / "bare", "--adapter", folder / "beside", "--out",
               folder / "other"})
              .exit_code == 0);
  for (const char* at : {"one", "other"}) {
    for (const char* file : {"chat_template.jinja", "generation_config.json", "tokenizer.json"})
      CHECK(read_file(folder.path() / at / file) == read_file(folder.path() / "tuned" / file));
    CHECK(ends_in(std::string(at) + "/config.json") == ends_in("bare/config.json"));
  }
}

TEST_CASE("what cannot answer says why") {
  const TemporaryFolder folder;
  check_refusal(run({"generate", folder / "nowhere", "--prompt", "a"}), 2,
                "there is no such folder", "config.json");
  const std::string at = trained(folder, {"--no-export"});
  REQUIRE(run({"export", at, "--out", folder / "model"}).exit_code == 0);
  const std::string model = folder / "model";
  check_refusal(run({"generate", model, "--prompt", "a", "--chat"}), 2, "no chat template is known",
                "chatml");
  check_refusal(run({"generate", model, "--prompt", "a", "--host-memory", "10kB"}), 3, "memory",
                "--host-memory");
  check_refusal(run({"generate", model, "--prompt", "a", "--top-p", "2"}), 2, "--top-p 2", "");
  check_refusal(run({"generate", model, "--prompt", ""}), 2, "a prompt has no token", "text");
  check_refusal(run({"generate", model, "--prompt", "a", "--tokens", "0"}), 2,
                "--tokens 0: an answer has tokens", "1 or more");
  check_refusal(run({"generate", model, "--prompt", "a", "--step", "1"}), 2,
                "--step: there is no run in", "leave it out");
  trained(folder, {"--no-export", "--remove-store", "--run", folder / "b"});
  check_refusal(run({"generate", folder / "b", "--prompt", "a"}), 2,
                "has no weights: its store was removed on purpose", "train it anew");
}
