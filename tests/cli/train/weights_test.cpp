// Training from a folder in Hugging Face's layout, and exporting one.
#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "test_paths.hpp"
#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

// Trains two steps from random values, and leaves a folder `model` with what was learned, as
// another program would: in shards, with a tokenizer.
std::string model_folder(const TemporaryFolder& folder, const Words& how = {}) {
  REQUIRE(run(tiny_training(folder) + Words{"--run", folder / "first", "--quiet"}).exit_code == 0);
  const Outcome exported = run(Words{"export", folder / "first", "--out", folder / "model"} + how);
  INFO(exported.err);
  REQUIRE(exported.exit_code == 0);
  folder.write("model/tokenizer.json", "{\"a tokenizer\": true}");
  return folder / "model";
}

// The same with a tokenizer that can be used, whose text it returns.
std::string model_with_tokenizer(const TemporaryFolder& folder) {
  REQUIRE(run(tiny_training(folder) +
              Words{"--run", folder / "first", "--set", "model.vocabulary=300", "--quiet"})
              .exit_code == 0);
  REQUIRE(run({"export", folder / "first", "--out", folder / "model"}).exit_code == 0);
  REQUIRE(run({"tokenizer", "train", folder / "text.txt", "--vocabulary", "280", "--out",
               folder / "tokenizer"})
              .exit_code == 0);
  const std::string text = read_file(folder / "tokenizer/tokenizer.json");
  folder.write("model/tokenizer.json", text);
  return text;
}

Words from_folder(const TemporaryFolder& folder, const std::string& run) {
  return tiny_training(folder) + Words{"--model", folder / "model", "--tokenizer", "bytes",
                                       "--run",   folder / run,     "--json"};
}

// Trains until `count` events are printed, and kills it.
void kill_after(const Words& arguments, const std::string& event, int count) {
  Program program(arguments);
  const auto seen = [&] {
    int found = 0;
    const std::string text = program.output();
    for (std::size_t at = text.find(event); at != std::string::npos; at = text.find(event, at + 1))
      ++found;
    return found;
  };
  while (program.running() && seen() < count)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  program.send(SIGKILL);
  CHECK(program.wait().signal == SIGKILL);
}

json ran(const Words& arguments) {
  const Outcome outcome = run(arguments);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json_lines().back();
}

}  // namespace

TEST_CASE("what is exported and trained from at a learning rate of 0 is the same file", "[store]") {
  const TemporaryFolder folder;
  model_folder(folder);
  CHECK(read_file(folder / "model/model.safetensors") ==
        read_file(folder / "first/model.safetensors"));
  ran(from_folder(folder, "second") +
      Words{"--learning-rate", "0", "--policy", "greedysnake:optimizer_ssd=1"});
  CHECK(read_file(folder / "second/model.safetensors") ==
        read_file(folder / "model/model.safetensors"));
}

TEST_CASE("a model that transformers has made has the loss that transformers gives it", "[store]") {
  // GPT2LMHeadModel with a width of 8, so that no matrix's shape tells whether it is transposed;
  // bf16. transformers 5.23 has this cross-entropy of the 24 tokens that follow the first one.
  const TemporaryFolder folder;
  const json end = ran({"train",
                        "--model",
                        std::string(SPILLWAY_SOURCE_DIR) + "/tests/cli/train/gpt2-of-transformers",
                        "--data",
                        folder.write("text.txt", "What is spilled comes bac"),
                        "--run",
                        folder / "run",
                        "--steps",
                        "1",
                        "--batch",
                        "1",
                        "--sequence",
                        "24",
                        "--policy",
                        "resident",
                        "--gpu-memory",
                        "32MB",
                        "--host-memory",
                        "64MB",
                        "--json"});
  CHECK(end["final_loss"].get<double>() == Approx(5.00871467590332).epsilon(2e-5));
}

TEST_CASE("training from a folder has the same numbers under every policy", "[store]") {
  const TemporaryFolder folder;
  model_folder(folder, {"--dtype", "bf16", "--max-shard", "500kB"});
  CHECK(fs::exists(folder / "model/model.safetensors.index.json"));
  const json resident = ran(from_folder(folder, "resident") + Words{"--policy", "resident"});
  for (const char* policy : {"zero-infinity", "greedysnake:optimizer_ssd=1,snake=off", "fuyou"}) {
    const json end = ran(from_folder(folder, policy) + Words{"--policy", policy});
    CHECK(end["weights_hash"] == resident["weights_hash"]);
    CHECK(end["final_loss"] == resident["final_loss"]);
  }
  // It began there, and not at random values.
  const auto before = recorded_losses(folder / "first"),
             after = recorded_losses(folder / "resident");
  CHECK(after.at(0) < before.at(0));
  const json start = json::parse(lines_of(read_file(folder / "resident/metrics.jsonl")).front());
  CHECK(start["weights"]["folder"] == folder / "model");
  CHECK(start["weights"]["hash"].get<std::string>().size() == 16);
}

TEST_CASE("a run goes on without the folder that it began with", "[store]") {
  const TemporaryFolder folder;
  model_folder(folder);
  const Words steps = {"--steps", "30", "--policy", "greedysnake:optimizer_ssd=1,snake=off"};
  const json whole = ran(from_folder(folder, "whole") + steps);
  kill_after(from_folder(folder, "run") + steps, "\"commit\"", 3);
  fs::remove_all(folder / "model");
  const json rest = ran({"train", "--resume", "--run", folder / "run", "--json"});
  CHECK(rest["weights_hash"] == whole["weights_hash"]);
}

TEST_CASE("before the first commit a run begins again with the folder, and with no other weights",
          "[store]") {
  const TemporaryFolder folder;
  model_folder(folder);
  const Words steps = {"--steps", "200", "--durability", "interval=190"};
  kill_after(from_folder(folder, "run") + steps, "\"step\"", 2);
  const Words resume = {"train", "--resume", "--run", folder / "run", "--json"};
  fs::rename(folder / "model", folder / "away");
  check_refusal(run(resume), 2, folder / "model", "");
  // The same shape in other files.
  REQUIRE(
      run({"export", folder / "first", "--out", folder / "model", "--dtype", "bf16"}).exit_code ==
      0);
  check_refusal(run(resume), 2, "the hash of the weights that it began with", "");
  // The same file but for one bit of one weight.
  fs::remove_all(folder / "model");
  fs::copy(folder / "away", folder / "model");
  std::string bytes = read_file(folder / "model/model.safetensors");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  folder.write("model/model.safetensors", bytes);
  check_refusal(run(resume), 2, "the hash of the weights that it began with", "");
  fs::remove_all(folder / "model");
  fs::rename(folder / "away", folder / "model");
  const json rest = ran(resume + Words{"--steps", "5"});
  const json whole = ran(from_folder(folder, "whole") + Words{"--steps", "5"});
  CHECK(rest["weights_hash"] == whole["weights_hash"]);
}

TEST_CASE("the tokenizer's files go with the model into the run and out of it", "[store]") {
  const TemporaryFolder folder;
  const std::string tokenizer = model_with_tokenizer(folder);
  ran(tiny_training(folder) +
      Words{"--model", folder / "model", "--run", folder / "second", "--json"});
  CHECK(read_file(folder / "second/tokenizer.json") == tokenizer);
  REQUIRE(run({"export", folder / "second", "--dtype", "bf16"}).exit_code == 0);
  CHECK(read_file(folder / "second/model-step-2/tokenizer.json") == tokenizer);
  CHECK(json::parse(read_file(folder / "second/model-step-2/config.json"))["torch_dtype"] ==
        "bfloat16");
  // A run that has ended is a model, too.
  ran(tiny_training(folder) + Words{"--model", folder / "second", "--tokenizer", "bytes", "--run",
                                    folder / "third", "--json"});
  // What was trained on bytes would be misread by the words of another.
  CHECK_FALSE(fs::exists(folder / "third/tokenizer.json"));
}

TEST_CASE(
    "a link of a model's folder is refused before anything is made, but for those of the cache",
    "[store]") {
  const TemporaryFolder folder;
  const std::string tokenizer = model_with_tokenizer(folder);
  const Words training =
      tiny_training(folder) + Words{"--model", folder / "model", "--run", folder / "run", "--json"};
  const std::string blobs = folder / "hub/models--org--m/blobs";
  fs::create_directories(blobs);
  const auto link_to = [&](const fs::path& file) {
    fs::remove(folder / "model/tokenizer.json");
    fs::create_symlink(file, folder / "model/tokenizer.json");
  };
  link_to(folder.write("secret", tokenizer));
  check_refusal(run(training), 2, "model/tokenizer.json leads out of the folder",
                "put the file itself there");
  CHECK_FALSE(fs::exists(folder / "run"));
  fs::rename(folder / "secret", blobs + "/0123");
  link_to(blobs + "/0123");
  ran(training);
  CHECK(read_file(folder / "run/tokenizer.json") == tokenizer);
}

TEST_CASE("a run from random values that begins again keeps the config.json that it has",
          "[store]") {
  const TemporaryFolder folder;
  model_folder(folder);
  json config = json::parse(read_file(folder / "model/config.json"));
  config["my_key"] = 1;
  folder.write("model/config.json", config.dump());
  kill_after(from_folder(folder, "run") +
                 Words{"--random-weights", "--steps", "200", "--durability", "interval=190"},
             "\"step\"", 2);
  ran({"train", "--resume", "--run", folder / "run", "--steps", "3", "--json"});
  CHECK(json::parse(read_file(folder / "run/config.json"))["my_key"] == 1);
}

TEST_CASE("a run that went on since it wrote its weights is not taken as a finished model",
          "[store]") {
  const TemporaryFolder folder;
  ran(tiny_training(folder) + Words{"--json"});
  fs::copy(folder / "run/model.safetensors", folder / "old");
  kill_after({"train", "--resume", "--run", folder / "run", "--steps", "1000000", "--json"},
             "\"commit\"", 2);
  CHECK_FALSE(fs::exists(folder / "run/model.safetensors"));
  const Words next =
      tiny_training(folder) + Words{"--model", folder / "run", "--run", folder / "next"};
  check_refusal(run(next), 2, "an earlier run", "spillway export " + folder / "run");
  fs::copy(folder / "old", folder / "run/model.safetensors");
  check_refusal(run(next), 2, "an earlier run", "spillway export " + folder / "run");
}

TEST_CASE("export takes either of the last two commits", "[store]") {
  const TemporaryFolder folder;
  const Words training = tiny_training(folder) + Words{"--json", "--durability", "step"};
  ran(training + Words{"--steps", "5", "--run", folder / "run"});
  ran(training + Words{"--steps", "4", "--run", folder / "shorter"});
  const Outcome exported = run({"export", folder / "run", "--step", "4", "--json"});
  INFO(exported.err);
  REQUIRE(exported.exit_code == 0);
  CHECK(exported.json()["step"] == 4);
  CHECK(read_file(folder / "run/model-step-4/model.safetensors") ==
        read_file(folder / "shorter/model.safetensors"));
  check_refusal(run({"export", folder / "run", "--step", "3"}), 2,
                "holds the state of step 5 and 4", "last two commits");
  check_refusal(run({"export", folder / "run", "--step", "4"}), 2, "is there already", "");
}

TEST_CASE("a commit that a later step has begun to overwrite is no alarm about the drive",
          "[store]") {
  const TemporaryFolder folder;
  ran(tiny_training(folder) + Words{"--json", "--durability", "step", "--steps", "5", "--policy",
                                    "greedysnake:optimizer_ssd=1,snake=off"});
  {
    // Step 4 lies in the first copies, which begin the file.
    std::fstream store(folder / "run/ssd/spillway-store-0.bin",
                       std::ios::in | std::ios::out | std::ios::binary);
    store.seekg(8192 + 4099);
    const char byte = static_cast<char>(store.get() ^ 4);
    store.seekp(8192 + 4099);
    store.put(byte);
  }
  const Words words = {"export", folder / "run", "--out", folder / "out", "--json"};
  check_refusal(run(words + Words{"--step", "4"}), 2, "overwrite the state of step 4",
                "leave it out for step 5");
  CHECK_FALSE(fs::exists(folder / "out"));
  check_refusal(run(words + Words{"--step", "0"}), 2, "step 0 is what the run began with",
                "leave it out");
  CHECK(run(words).exit_code == 0);
}

TEST_CASE(
    "a run whose state was removed is exported as it ended, and one without weights is refused",
    "[store]") {
  const TemporaryFolder folder;
  const Words training = tiny_training(folder) + Words{"--json", "--remove-store"};
  ran(training);
  REQUIRE(run({"export", folder / "run", "--out", folder / "out/"}).exit_code == 0);
  CHECK(read_file(folder / "out/model.safetensors") == read_file(folder / "run/model.safetensors"));
  check_refusal(run({"export", folder / "run", "--step", "2", "--out", folder / "b"}), 2,
                "no committed state any more", "--step");
  ran(training + Words{"--no-export", "--run", folder / "none"});
  check_refusal(run({"export", folder / "none", "--out", folder / "b"}), 2, "no committed state",
                "durability");
  check_refusal(run({"export", folder / "absent"}), 2, "absent", "");
}

TEST_CASE("a folder without weights says so, and trains from random values where asked to",
          "[store]") {
  const TemporaryFolder folder;
  model_folder(folder);
  fs::remove(folder / "model/model.safetensors");
  check_refusal(run(from_folder(folder, "run")), 2, "there are no weights in", "--random-weights");
  CHECK_FALSE(fs::exists(folder / "run"));
  const json end = ran(from_folder(folder, "run") + Words{"--random-weights"});
  const json first = json::parse(lines_of(read_file(folder / "first/metrics.jsonl")).back());
  CHECK(end["weights_hash"] == first["weights_hash"]);
}

TEST_CASE("a folder's model is estimated and simulated like any other") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "tiny");
  fs::create_directory(folder / "odd");
  folder.write("tiny/config.json",
               R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64,
                   "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "max_position_embeddings": 128})");
  for (const char* command : {"estimate", "simulate"}) {
    const Outcome outcome = run({command, "--model", folder / "tiny", "--machine", "testbed",
                                 "--policy", "zero-infinity", "--batch", "2", "--json"});
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK(outcome.json()["model"] == "tiny");
  }
  folder.write("odd/config.json", R"({"architectures": ["BloomForCausalLM"]})");
  check_refusal(run({"estimate", "--model", folder / "odd", "--machine", "testbed", "--policy",
                     "zero-infinity", "--batch", "2"}),
                2, "odd/config.json: architectures is [\"BloomForCausalLM\"]", "LlamaForCausalLM");
}
