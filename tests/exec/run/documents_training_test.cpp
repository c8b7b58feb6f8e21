// The promise of the executor where sequences hold several documents and targets do not count.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "exec/data/dataset.hpp"
#include "policies/common/run_record.hpp"
#include "tests/exec/document_batches.hpp"
#include "tests/exec/streams/stream_training.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway {
namespace {

using test::DocumentBatches;
using test::Losses;
using test::Workbench;

TrainingOptions documents_options(const Workbench& bench, const std::string& policy,
                                  const std::string& model, bool has_borders = true) {
  TrainingOptions options = bench.options(policy, 3, 32, 4, model);
  options.batches = std::make_shared<const DocumentBatches>(4, has_borders);
  options.steps = 6;
  return options;
}

std::vector<std::string> all_policies() {
  std::vector<std::string> all;
  for (const PolicyInfo& policy : builtin_policies())
    all.push_back(policy.name == "greedysnake" ? "greedysnake:snake=off" : policy.name);
  all.insert(all.end(), {"resident:recompute=full", "resident:recompute=needed",
                         "fuyou:swap=0.5,checkpoints_ssd=0.5"});
  return all;
}

TEST_CASE("every policy trains packed documents bit-identically, in any micro-batches") {
  for (const bool has_borders : {true, false}) {
    for (const char* model : test::trained_models) {
      INFO(model << (has_borders ? ", borders" : ", no borders"));
      const Workbench bench;
      TrainingOptions options = documents_options(bench, "resident", model, has_borders);
      const Losses resident = test::train_within_plan(options);
      CHECK(resident.of_step.back() < resident.of_step.front());
      for (const std::string& policy : all_policies()) {
        for (const std::int64_t micro_batch : {2, 8}) {
          INFO(policy << ", micro-batches of " << micro_batch);
          options.policy = policy;
          options.problem.workload.micro_batch = micro_batch;
          CHECK(difference(resident, test::train_within_plan(options)) == "");
        }
      }
    }
  }
}

TEST_CASE("borders and masks decide the numbers, and an unmasked text has the usual ones") {
  // All targets of all sequences count: the text as bytes, once as it is and once by an interface
  // that says that there are borders, all of them at the sequences' first tokens.
  class Unmasked : public Batches {
   public:
    explicit Unmasked(const TrainingOptions& options) : text_(options.data, options.seed) {}
    void require(std::int64_t length, std::int64_t vocabulary) const override {
      text_.require(length, vocabulary);
    }
    void batch(std::int64_t step, std::int64_t first, std::int64_t sequences, std::int64_t length,
               std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) const override {
      text_.batch(step, first, sequences, length, tokens, targets);
      std::fill_n(starts, sequences * length, 0);
    }
    bool has_borders() const override { return true; }
    std::uint64_t size() const override { return text_.size(); }
    std::uint64_t hash() const override { return text_.hash(); }

   private:
    Dataset text_;
  };
  for (const char* model : test::trained_models) {
    INFO(model);
    const Workbench bench;
    TrainingOptions options = documents_options(bench, "zero-infinity", model);
    const Losses packed = test::train_within_plan(options);
    options.batches = std::make_shared<const DocumentBatches>(4, false);
    CHECK(difference(packed, test::train_within_plan(options)) != "");
    options.batches = nullptr;
    const Losses text = test::train_within_plan(options);
    options.batches = std::make_shared<const Unmasked>(options);
    CHECK(difference(text, test::train_within_plan(options)) == "");
  }
}

TEST_CASE("packed documents go on bit for bit after a stop, under another policy") {
  const Workbench bench;
  TrainingOptions options = documents_options(bench, "zero-infinity", "llama-tiny");
  options.guard_bytes = 0;
  options.steps = 60;
  const Losses whole = test::train_within_plan(options);

  options.durability = {DurabilityMode::on, 1};
  options.keep_store = true;
  Losses parts;
  const auto take = [&](const StepResult& step) { parts.of_step.push_back(step.loss); };
  StoreLocation location;
  {
    Training first(options);
    first.run(
        [&](const StepResult& step) {
          take(step);
          if (step.step == 3) first.request_stop();
        },
        nullptr);
    location = first.store_location();
  }
  REQUIRE(parts.of_step.size() < whole.of_step.size());
  options.resume = find_resume_point(location);
  SECTION("with the same batches") {
    options.policy = "fuyou";
    Training second(options);
    parts.weights_hash = second.run(take, nullptr).weights_hash;
    CHECK(difference(whole, parts) == "");
  }
  SECTION("with other batches") {
    options.batches = std::make_shared<const DocumentBatches>(5);
    CHECK_THROWS_AS(Training(options), InputError);
  }
}

TEST_CASE("packed documents on streams: the numbers of the host's own lanes, graphs included") {
  test::Watchdog watchdog;
  for (const char* policy : {"resident", "zero-infinity", "greedysnake:snake=off"}) {
    for (const bool has_borders : {true, false}) {
      INFO(policy << (has_borders ? ", borders" : ", no borders"));
      watchdog.now(policy);
      const Workbench bench;
      TrainingOptions options = documents_options(bench, policy, "gpt-tiny", has_borders);
      options.steps = 12;
      const test::Numbers expected = test::train_all(options);
      test::StreamRecord record;
      const test::Numbers found =
          test::train_all(test::on_streams(options, record, {.seed = 3, .most_delay_us = 20}));
      CHECK(record.broken() == "");
      CHECK(difference(expected, found) == "");
    }
  }
}

}  // namespace
}  // namespace spillway
