// Training on documents and on files of tokens, as a user gives them.
#include <signal.h>

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

// Records of texts of many lengths.
std::string records() {
  std::string text;
  for (int i = 0; i < 60; ++i) {
    std::string words;
    for (int j = 0; j <= i % 9; ++j) words += "word" + std::to_string(i * j % 17) + " ";
    text += json{{"text", words}}.dump() + "\n";
  }
  return text;
}

template <class Number>
std::string numbers(std::size_t count, Number below) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const auto number = static_cast<Number>(i * i % static_cast<std::size_t>(below));
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  return bytes;
}

std::string llm_c_header(std::uint32_t tokens) {
  std::vector<std::uint32_t> words(256);
  words[0] = 20240520;
  words[1] = 1;
  words[2] = tokens;
  return {reinterpret_cast<const char*>(words.data()), 1024};
}

json start_of(const Outcome& outcome) {
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json_lines().front();
}

}  // namespace

TEST_CASE("records are packed with borders, and a killed run goes on with them to the same losses",
          "[store]") {
  const TemporaryFolder folder;
  const std::string data = folder.write("records.jsonl", records());
  const Words arguments =
      tiny_training(folder, data) +
      Words{"--steps", "30",          "--sequence", "64",
            "--json",  "--no-export", "--policy",   "greedysnake:optimizer_ssd=1,snake=off"};
  const KeptMeasurements cache(folder / "cache");
  const Outcome whole = run(arguments + Words{"--run", folder / "whole"});
  const json start = start_of(whole);
  CHECK(start["data"]["packing"] == "packed");
  CHECK(start["data"]["documents"] == 60);
  CHECK(start["data"]["fill_rate"] > 0.9);
  {
    Program program(arguments);
    while (program.running() && program.output().find("\"commit\",\"step\":7") == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    program.send(SIGKILL);
    CHECK(program.wait().signal == SIGKILL);
  }
  const Outcome refused = run({"train", "--resume", "--run", folder / "run", "--pack", "off"});
  check_refusal(refused, 2, "--pack off: the training to go on with began without --pack",
                "goes on bit for bit");
  for (const auto& [option, value] :
       {std::pair("--train-on", "all"), {"--chat-template", "chatml"}, {"--validation", "1%"}})
    check_refusal(run({"train", "--resume", "--run", folder / "run", option, value}), 2,
                  std::string(option) + " " + value + ": the training to go on with began without",
                  "leave the option out");
  const Outcome rest = run({"train", "--resume", "--run", folder / "run", "--json"});
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(recorded_losses(folder / "run") == recorded_losses(folder / "whole"));
  CHECK(rest.json_lines().back()["weights_hash"] == whole.json_lines().back()["weights_hash"]);
}

TEST_CASE("epochs and tokens say how many steps a training has") {
  const TemporaryFolder folder;
  const std::string data = folder.write("records.jsonl", records());
  Words arguments = tiny_training(folder, data);
  arguments.erase(std::find(arguments.begin(), arguments.end(), "--steps"),
                  std::find(arguments.begin(), arguments.end(), "--steps") + 2);
  arguments = arguments + Words{"--json", "--no-export", "--durability", "off"};
  const json start = start_of(run(arguments + Words{"--epochs", "2"}));
  const std::uint64_t sequences = start["data"]["sequences"];
  CHECK(start["steps"] == (2 * sequences + 1) / 2);  // 2 sequences a step
  const json by_tokens = start_of(run(arguments + Words{"--tokens", "100", "--run", folder / "b"}));
  CHECK(by_tokens["steps"] == 4);  // of 2 * 16 tokens
  check_refusal(run(arguments + Words{"--tokens", "100", "--steps", "4", "--run", folder / "c"}), 2,
                "each say how long to train", "give one of them");
  check_refusal(run(arguments + Words{"--epochs", "0", "--run", folder / "c"}), 2, "--epochs 0",
                "--help");
}

TEST_CASE("files of llm.c and nanoGPT are trained on, where it is clear what they are") {
  const TemporaryFolder folder;
  const std::string tokens = numbers<std::uint16_t>(500, 256);
  const std::string llm_c = folder.write("llm_c.bin", llm_c_header(500) + tokens);
  const std::string bare = folder.write("bare.bin", tokens);
  const Words rest = {"--json", "--no-export", "--durability", "off"};
  const Outcome first = run(tiny_training(folder, llm_c) + rest);
  const json start = start_of(first);
  CHECK(start["data"]["packing"] == "stream");
  CHECK(start["data"]["tokens"] == 500);
  const Outcome same = run(tiny_training(folder, bare) + rest +
                           Words{"--data-format", "uint16", "--run", folder / "bare"});
  start_of(same);
  CHECK(recorded_losses(folder / "bare") == recorded_losses(folder / "run"));

  check_refusal(run(tiny_training(folder, bare) + rest + Words{"--run", folder / "c"}), 2,
                "has no header that says what it holds", "--data-format uint16");
  check_refusal(run(tiny_training(folder, bare) + rest +
                    Words{"--data-format", "uint32", "--run", folder / "c"}),
                2, "the vocabulary ends at 255", "--data-format");
  const std::string large =
      folder.write("large.bin", llm_c_header(500) + numbers<std::uint16_t>(500, 50257));
  check_refusal(run(tiny_training(folder, large) + rest + Words{"--run", folder / "c"}), 2,
                "the vocabulary ends at 255", "another model's tokenizer");
  check_refusal(
      run(tiny_training(folder, llm_c) + rest + Words{"--pack", "on", "--run", folder / "c"}), 2,
      "does not say where its documents end", "--pack stream");
  CHECK(!fs::exists(folder / "c"));
}

TEST_CASE(
    "tokens are made once, whatever has become of the files' names, and again where damaged") {
  const TemporaryFolder folder;
  const KeptMeasurements cache(folder / "cache");
  const std::string data = folder.write("records.jsonl", records());
  const auto show = [](const std::string& path) {
    return run({"data", "show", path, "--tokenizer", "bytes", "--sequence", "32", "--json"});
  };
  const Outcome first = show(data);
  INFO(first.err);
  REQUIRE(first.exit_code == 0);
  fs::rename(data, folder / "other.jsonl");
  CHECK(show(folder / "other.jsonl").json()["sequences"] == first.json()["sequences"]);
  const json entries = run({"data", "cache", "--json"}).json()["entries"];
  REQUIRE(entries.size() == 1);
  CHECK(entries[0]["documents"] == 60);
  const fs::path entry = fs::path(folder / "cache") / "spillway/tokens" /
                         entries[0]["name"].get<std::string>() / "00000.tokens";
  fs::resize_file(entry, 200);
  CHECK(show(folder / "other.jsonl").json()["sequences"] == first.json()["sequences"]);
  CHECK(run({"data", "cache", "--remove", "all", "--json"}).json()["entries"].empty());
  check_refusal(run({"data", "cache", "--remove", "nothing"}), 2,
                "there are no tokens called nothing", "spillway data cache");
}

TEST_CASE("data show says what the model will see: tokens, targets that count, borders") {
  const TemporaryFolder folder;
  const std::string data = folder.write("pairs.jsonl",
                                        "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n"
                                        "{\"prompt\": \"efgh\", \"completion\": \"i\"}\n");
  const Outcome shown = run({"data", "show", data, "--tokenizer", "bytes", "--sequence", "8",
                             "--sequences", "1", "--json"});
  INFO(shown.err);
  REQUIRE(shown.exit_code == 0);
  const json row = shown.json()["sequences"][0];
  // The longer document first: efgh|i with the target i, then ab|cd with the targets c and d.
  CHECK(row["tokens"] == json({'e', 'f', 'g', 'h', 'a', 'b', 'c', 0}));
  CHECK(row["targets"] == json({-1, -1, -1, 'i', -1, 'c', 'd', -1}));
  CHECK(row["starts"] == json({0, 0, 0, 0, 4, 4, 4, 7}));
  CHECK(row["counted"] == 3);
  const Outcome text =
      run({"data", "show", data, "--tokenizer", "bytes", "--sequence", "8", "--sequences", "1"});
  CHECK_THAT(text.out, Catch::Contains("7 of 8 places filled, 3 trained on, 2 documents"));
}

TEST_CASE("tokenize writes what train reads, keeps what is there, and refuses another's folder") {
  const TemporaryFolder folder;
  const std::string data = folder.write("records.jsonl", records());
  const Words tokenize = {"tokenize", data, "--tokenizer", "bytes", "--json", "--out"};
  const Outcome made = run(tokenize + Words{folder / "tokens"});
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK(made.json()["documents"] == 60);
  CHECK(run(tokenize + Words{folder / "tokens"}).json()["kept_files"] == 1);
  CHECK(run(tokenize + Words{folder / "one", "--threads", "1"}).json()["hash"] ==
        made.json()["hash"]);
  const Words rest = {"--json", "--no-export", "--durability", "off"};
  start_of(run(tiny_training(folder, folder / "tokens") + rest));
  start_of(run(tiny_training(folder, data) + rest + Words{"--run", folder / "text"}));
  CHECK(recorded_losses(folder / "run") == recorded_losses(folder / "text"));

  const std::string other = folder.write("other.jsonl", "{\"text\": \"something else\"}\n");
  check_refusal(run({"tokenize", other, "--tokenizer", "bytes", "--out", folder / "tokens"}), 2,
                "holds tokens of something else", "name another folder");
  check_refusal(run({"tokenize", other, "--out", folder / "tokens"}), 2, "there is no tokenizer",
                "--tokenizer DIR");
  const std::string weighted = data + "=2";
  check_refusal(run({"tokenize", weighted, "--tokenizer", "bytes", "--out", folder / "w"}), 2,
                "weights say how often", "give weights to train");
}

TEST_CASE("validation data is held out of training") {
  const TemporaryFolder folder;
  const std::string data = folder.write("records.jsonl", records());
  const Words rest = {"--json", "--no-export", "--durability", "off"};
  const json all = start_of(run(tiny_training(folder, data) + rest))["data"];
  const json part = start_of(run(tiny_training(folder, data) + rest +
                                 Words{"--validation", "10", "--run", folder / "b"}))["data"];
  CHECK(part["counted_targets"] < all["counted_targets"]);
  check_refusal(
      run(tiny_training(folder, data) + rest + Words{"--validation", "60", "--run", folder / "c"}),
      2, "60 cannot be held out", "--validation FILES");
  check_refusal(
      run(tiny_training(folder) + rest + Words{"--validation", "3", "--run", folder / "c"}), 2,
      "running text has no documents", "--validation 1%");
}
