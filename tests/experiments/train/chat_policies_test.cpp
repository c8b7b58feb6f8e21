// A chat fine-tune, from the files of a user to the weights, under every policy: the numbers are
// those of the resident training.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "experiments/train/training_job.hpp"
#include "policies/common/run_record.hpp"
#include "tests/temporary_folder.hpp"
#include "text/tokenizer/train_tokenizer.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr int chats = 60;

std::string sentence(int i, int words) {
  constexpr const char* of[] = {"water", "flows", "over", "the", "spillway", "and", "down"};
  std::string text;
  for (int k = 0; k < words; ++k)
    text += fmt::format("{}{}", k == 0 ? "" : " ", of[(i * k + i) % 7]);
  return text;
}

// Chats of one to three turns, some of them longer than a sequence, some with a system message.
std::string chats_of_many_lengths() {
  std::string lines;
  for (int i = 0; i < chats; ++i) {
    nlohmann::json messages = nlohmann::json::array();
    const auto say = [&](const char* role, const std::string& text) {
      messages.push_back({{"role", role}, {"content", text}});
    };
    if (i % 5 == 0) say("system", "answer in " + std::to_string(i % 4) + " words");
    for (int turn = 0; turn <= i % 3; ++turn) {
      say("user", sentence(i + turn, 1 + i % 4));
      say("assistant", sentence(2 * i + turn, 1 + i % 9));
    }
    lines += nlohmann::json{{"messages", messages}}.dump() + "\n";
  }
  return lines;
}

// A user's folder: chats, a tokenizer, and a place of its own for what the program keeps.
class Desk {
 public:
  Desk() {
    const char* const before = std::getenv("XDG_CACHE_HOME");
    if (before != nullptr) cache_before_ = before;
    ::setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
    std::ofstream(folder_ / "chats.jsonl") << chats_of_many_lengths();
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 50; ++i) text << "user assistant system " << sentence(i, 9) << ".\n";
    text.close();
    TokenizerTraining tokenizer;
    tokenizer.source.paths = {folder_ / "text.txt"};
    tokenizer.vocabulary = 290;
    tokenizer.special = {"<|im_start|>", "<|im_end|>"};
    train_tokenizer(tokenizer, folder_ / "tokenizer");
  }
  ~Desk() {
    cache_before_ ? ::setenv("XDG_CACHE_HOME", cache_before_->c_str(), 1)
                  : ::unsetenv("XDG_CACHE_HOME");
  }

  TrainRequest request(const std::string& policy, bool lora) const {
    TrainRequest request;
    request.run = (folder_ / "run").string();
    request.settings = {{"model", {"gpt-tiny"}},
                        {"set",
                         {"model.layers=3", "model.hidden=32", "model.heads=2",
                          "model.vocabulary=300", "model.positions=48"}},
                        {"data", {(folder_ / "chats.jsonl").string()}},
                        {"tokenizer", {(folder_ / "tokenizer").string()}},
                        {"chat_template", {"chatml"}},
                        {"validation", {"20%"}},
                        {"evaluate_every", {"2"}},
                        {"sample_prompt", {"water flows"}},
                        {"sample_chat", {"over the spillway"}},
                        {"sample_every", {"3"}},
                        {"sample_tokens", {"8"}},
                        {"device", {"cpu"}},
                        {"batch", {"8"}},
                        {"micro_batch", {"2"}},
                        {"sequence", {"48"}},
                        {"durability", {"off"}},
                        {"no_export", {"true"}},
                        {"steps", {"5"}},
                        {"policy", {policy}}};
    if (lora) request.settings["lora"] = {"rank=4,dropout=0.1"};
    return request;
  }

 private:
  test::TemporaryFolder folder_;
  std::optional<std::string> cache_before_;
};

struct ChatNumbers {
  std::vector<double> losses;
  std::vector<EvaluationResult> evaluations;
  std::vector<std::string> samples;
  std::uint64_t weights = 0;
};

// With little more memory than the training needs: in each tier the first limit that it fits.
ChatNumbers train_tightly(TrainRequest request) {
  std::unique_ptr<TrainingJob> job;
  const auto fits = [&](const char* key, std::uint64_t bytes) {
    request.settings[key] = {fmt::format("{}B", bytes)};
    try {
      job = nullptr;
      job = std::make_unique<TrainingJob>(request);
    } catch (const FitError&) {
      return false;
    }
    return true;
  };
  request.settings["host_memory"] = {"64MB"};
  for (const char* key : {"gpu_memory", "host_memory"}) {
    std::uint64_t bytes = 128 << 10;
    while (!fits(key, bytes)) bytes += bytes / 4;
  }
  const TrainingData& data = job->data();
  REQUIRE(data.summary.packing == "packed");
  REQUIRE(data.summary.documents == chats);
  REQUIRE(data.summary.trained_tokens < data.summary.tokens);  // masked
  REQUIRE(data.validation_batches > 0);
  ChatNumbers numbers;
  job->open();
  job->begin();
  TrainReports reports;
  reports.step = [&](const StepResult& step) { numbers.losses.push_back(step.loss); };
  reports.evaluated = [&](const EvaluationResult& one) { numbers.evaluations.push_back(one); };
  reports.sampled = [&](std::int64_t step, const std::vector<TrainingSample>& samples) {
    for (const TrainingSample& sample : samples)
      numbers.samples.push_back(fmt::format("{} {} {}", step, sample.is_chat, sample.text));
  };
  numbers.weights = job->train(reports).weights_hash;
  job->finish();
  fs::remove_all(request.run);
  return numbers;
}

void check_equal(const ChatNumbers& expected, const ChatNumbers& found, double rounding) {
  const auto check = [&](double a, double b) { CHECK(std::abs(a - b) <= rounding * std::abs(a)); };
  REQUIRE(found.losses.size() == expected.losses.size());
  for (std::size_t s = 0; s < expected.losses.size(); ++s)
    check(expected.losses[s], found.losses[s]);
  REQUIRE(found.evaluations.size() == expected.evaluations.size());
  for (std::size_t n = 0; n < expected.evaluations.size(); ++n) {
    CHECK(found.evaluations[n].step == expected.evaluations[n].step);
    CHECK(found.evaluations[n].tokens == expected.evaluations[n].tokens);
    check(expected.evaluations[n].loss, found.evaluations[n].loss);
  }
  if (rounding > 0) return;
  CHECK(found.samples == expected.samples);
  CHECK(found.weights == expected.weights);
}

void check_every_policy(bool lora) {
  const Desk desk;
  std::vector<std::string> policies = {"zero-infinity:pipeline_read=on,max_reuse_distance=0",
                                       "fuyou:swap=0.5,checkpoints_ssd=1", "greedysnake:snake=off",
                                       "greedysnake:snake=off,alpha=0.5,optimizer_ssd=1,"
                                       "parameters_ssd=1,checkpoints_ssd=1",
                                       "resident:recompute=full"};
  for (const PolicyInfo& policy : builtin_policies()) policies.push_back(policy.name);
  const ChatNumbers resident = train_tightly(desk.request("resident", lora));
  REQUIRE(resident.losses.size() == 5);
  REQUIRE(resident.samples.size() == 6);      // two prompts, before step 0 and after steps 3 and 5
  REQUIRE(resident.evaluations.size() == 4);  // before steps 0, 2 and 4, and after the last
  CHECK(resident.evaluations.back().loss < resident.evaluations.front().loss);
  for (const std::string& policy : policies) {
    INFO(policy);
    // Snake order adds up the micro-batches of odd layers in another order.
    const double rounding = policy == "greedysnake" ? 1e-4 : 0;
    check_equal(resident, train_tightly(desk.request(policy, lora)), rounding);
  }
}

}  // namespace

TEST_CASE("a chat fine-tune in tight memory has the same numbers under every policy",
          "[store][slow]") {
  check_every_policy(false);
}

TEST_CASE("a chat fine-tune of adapters has the same numbers under every policy", "[store]") {
  check_every_policy(true);
}

}  // namespace spillway
