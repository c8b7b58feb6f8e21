// A run that speaks from what it has committed: which weights, and how long the run is held up.
#include "experiments/generate/speaker.hpp"

#include <catch2/catch.hpp>
#include <fstream>

#include "base/errors.hpp"
#include "exec/run/export_lock.hpp"
#include "exec/run/run_folder.hpp"
#include "experiments/train/training_job.hpp"
#include "policies/model/units.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

class SpeakingRun {
 public:
  SpeakingRun() {
    std::ofstream text(folder_.path() / "text.txt");
    for (int i = 0; i < 200; ++i) text << "line " << i * i << " of a text.\n";
  }
  fs::path path() const { return folder_.path() / "run"; }

  // Trains without weights written at its end.
  void train(const GivenSettings& more = {}) const {
    TrainRequest request;
    request.run = path().string();
    request.settings = {{"model", {"gpt-tiny"}},
                        {"set", {"model.layers=4", "model.hidden=32", "model.heads=2"}},
                        {"data", {(folder_.path() / "text.txt").string()}},
                        {"policy", {"resident"}},
                        {"device", {"cpu"}},
                        {"batch", {"2"}},
                        {"micro_batch", {"2"}},
                        {"sequence", {"16"}},
                        {"gpu_memory", {"16MB"}},
                        {"host_memory", {"32MB"}},
                        {"durability", {"step"}},
                        {"no_export", {"true"}},
                        {"steps", {"3"}}};
    for (const auto& [key, texts] : more) request.settings[key] = texts;
    TrainingJob job(request);
    job.open();
    job.begin();
    job.train({});
    job.export_weights();
    job.finish();
  }

  SpeakerRequest request() const {
    SpeakerRequest request;
    request.model = path().string();
    return request;
  }
  // Whether a run in this folder could overwrite what it has committed.
  bool is_let_go() const { return ExportLock(Directory(path())).nobody_reads(); }

 private:
  test::TemporaryFolder folder_;
};

constexpr std::int64_t positions = 32;

// Enough for all but the layers from the third on.
std::uint64_t little_memory(const ModelSpec& model) {
  return Decoder::memory_bytes(model, 1, positions) + UnitWeights::least_bytes(model) + 1024;
}

std::vector<float> logits(Speaker& speaker) {
  const std::vector<Token> tokens = speaker.text_tokens("line 9");
  const auto all = speaker.open(1, positions).append(0, tokens);
  return {all.begin(), all.end()};
}

}  // namespace

TEST_CASE("weights that are all in memory hold no run up", "[store]") {
  const SpeakingRun run;
  run.train();
  Speaker speaker(run.request());
  CHECK(speaker.weights() == "step 3, committed");
  CHECK_FALSE(run.is_let_go());
  const std::vector<float> all = logits(speaker);
  CHECK(speaker.layers_in_memory() == 4);
  CHECK(run.is_let_go());

  SpeakerRequest little = run.request();
  little.memory = little_memory(speaker.model());
  Speaker reads_again(little);
  CHECK(logits(reads_again) == all);
  CHECK(reads_again.layers_in_memory() < 4);
  CHECK_FALSE(run.is_let_go());
}

TEST_CASE("the commit before the newest, a step that is kept, and one that is neither", "[store]") {
  const SpeakingRun run;
  run.train({{"keep", {"1"}}, {"keep_every", {"2"}}});
  const auto said = [&](std::optional<std::int64_t> step, const std::string& folder = "") {
    SpeakerRequest request = run.request();
    request.step = step;
    if (!folder.empty()) request.model += "/" + folder;
    Speaker speaker(request);
    return std::pair(speaker.weights(), logits(speaker));
  };
  const auto newest = said({}), kept = said(2), by_name = said({}, "checkpoints/step-000002/");
  CHECK(newest.first == "step 3, committed");
  CHECK(newest.second == said(3).second);
  CHECK(kept.first.starts_with("step 2, kept"));
  CHECK(kept.second == by_name.second);
  CHECK(kept.second != newest.second);
  CHECK_THROWS_WITH(said(1), Catch::Contains("kept in") && Catch::Contains("are 2"));
  CHECK_THROWS_WITH(said(1, "checkpoints/step-000002"), Catch::Contains("there is no run in"));
}

TEST_CASE("a chat that would hold a run at work up is refused, an answer is not", "[store]") {
  const SpeakingRun run;
  run.train();
  std::vector<std::string> notes;
  SpeakerRequest request = run.request();
  request.note = [&](const std::string& text) { notes.push_back(text); };
  request.talks = true;
  request.memory = little_memory(Speaker(request).model());
  {
    Speaker speaker(request);
    logits(speaker);
    REQUIRE(notes.size() == 1);
    CHECK_THAT(notes[0], Catch::Contains("waits for the end of this chat"));
  }
  const RunFolder at_work = RunFolder::open(run.path().string());
  Speaker refused(request);
  try {
    logits(refused);
    FAIL("it is not refused");
  } catch (const FitError& error) {
    CHECK_THAT(error.what(), Catch::Contains("is at work"));
    CHECK_THAT(error.hint(), Catch::Contains("spillway export") && Catch::Contains("memory"));
  }
  request.talks = false;
  Speaker answers(request);
  CHECK(logits(answers).size() == 256);
  request.talks = true;
  request.memory = 0;
  Speaker in_memory(request);
  CHECK(logits(in_memory).size() == 256);
}

TEST_CASE("of a run that trains a part of its model, that part alone is read from its store",
          "[store]") {
  for (const GivenSettings& part :
       {GivenSettings{{"lora", {"rank=2"}}}, GivenSettings{{"train_layers", {"1"}}}}) {
    INFO(part.begin()->first);
    const SpeakingRun run;
    run.train(part);
    Speaker speaker(run.request());
    const std::vector<float> all = logits(speaker);
    SpeakerRequest little = run.request();
    little.talks = true;
    std::uint64_t trained = 0;
    for (std::int64_t unit = 0; unit < unit_count(speaker.model()); ++unit)
      trained += 4 * static_cast<std::uint64_t>(trained_elements(speaker.model(), unit));
    little.memory = little_memory(speaker.model()) + trained;
    const RunFolder at_work = RunFolder::open(run.path().string());
    Speaker reads_again(little);
    CHECK(logits(reads_again) == all);
    CHECK(reads_again.layers_in_memory() < 4);
    CHECK(run.is_let_go());
  }
}

TEST_CASE("names of special tokens in a prompt are letters unless asked for") {
  const SpeakingRun run;
  run.train();
  const fs::path tokenizer = run.path() / "tokenizer.json";
  std::ofstream(tokenizer) << R"({"model": {"type": "BPE", "vocab": {"<": 0, "e": 1, ">": 2},
    "merges": []}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [{"id": 3, "content": "<e>", "special": true}]})";
  SpeakerRequest request = run.request();
  CHECK(Speaker(request).text_tokens("e<e>") == std::vector<Token>{1, 0, 1, 2});
  request.parse_special = true;
  CHECK(Speaker(request).text_tokens("e<e>") == std::vector<Token>{1, 3});
}

}  // namespace spillway
