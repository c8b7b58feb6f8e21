// Evaluations in the midst of a training: the losses are those of the state at this step, and the
// training is the same as without.
#include <functional>
#include <limits>

#include "exec/data/dataset.hpp"
#include "tests/exec/training_support.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// Batch `step` of the text is, in the n-th evaluation, batch n + step of the training: its loss is
// that of training step n, which has the same state. `asked` is called for each part of a batch.
class NextSteps : public Batches {
 public:
  NextSteps(const fs::path& text, std::uint64_t seed)
      : text_({text}, seed, Dataset::default_memory_limit, false) {}
  void require(std::int64_t sequence, std::int64_t vocabulary) const override {
    text_.require(sequence, vocabulary);
  }
  void batch(std::int64_t step, std::int64_t first, std::int64_t sequences, std::int64_t length,
             std::int32_t* tokens, std::int32_t* targets, std::int32_t* starts) const override {
    if (asked) asked();
    text_.batch(first_step + step, first, sequences, length, tokens, targets, starts);
  }
  std::uint64_t size() const override { return text_.size(); }
  std::uint64_t hash() const override { return text_.hash(); }

  std::int64_t first_step = 0;
  std::function<void()> asked;

 private:
  Dataset text_;
};

struct Evaluated {
  Losses training;
  std::vector<EvaluationResult> results;
};

// Evaluates `count` batches of the training's next steps every `every` steps.
Evaluated train(TrainingOptions options, const fs::path& text, std::int64_t every,
                std::int64_t count) {
  const auto batches = std::make_shared<NextSteps>(text, options.seed);
  options.evaluations = {batches, count, every};
  Evaluated evaluated;
  Training training(options);
  batches->first_step = training.first_step();
  training.on_evaluation([&](const EvaluationResult& result) {
    evaluated.results.push_back(result);
    batches->first_step = result.step + every;
    return true;
  });
  const auto take = [&](const StepResult& step) {
    evaluated.training.of_step.push_back(step.loss);
  };
  evaluated.training.weights_hash = training.run(take, nullptr).weights_hash;
  const TierBytes peaks = planned_peaks(training, options);
  for (const Tier tier : {Tier::gpu, Tier::host}) {
    const std::uint64_t peak =
        std::max(peaks[static_cast<std::size_t>(tier)],
                 training.schedules().evaluation().front()->use(tier).peak_bytes);
    CHECK(training.highest_written(tier) <= peak);
  }
  return evaluated;
}

}  // namespace

TEST_CASE("An evaluation's loss is that of the state at its step, and training goes on as without",
          "[evaluation][store]") {
  const Workbench bench(folder_for_many_runs());
  int k = 0;
  for (const std::string& policy : policy_settings()) {
    const std::string model = trained_models[k++ % 3];
    TrainingOptions options = bench.options(policy, 3, 32, 3, model);
    if (k % 4 == 0) options.problem.model.lora_rank = 3;
    if (k % 4 == 1) options.problem.model.frozen_layers = 1;
    if (is_refused_plan(options.problem, policy)) continue;
    INFO(policy << ", " << model);
    options.steps = 7;
    const Losses without = train_within_plan(options);
    const Evaluated with = train(options, options.data[0], 3, 1);
    CHECK(difference(without, with.training) == "");
    REQUIRE(with.results.size() == 4);
    for (std::size_t n = 0; n < 4; ++n) {
      CHECK(with.results[n].step == std::min<std::int64_t>(3 * static_cast<std::int64_t>(n), 7));
      CHECK(with.results[n].tokens == options.problem.workload.tokens_per_step());
    }
    for (std::size_t n = 0; n < 3; ++n) CHECK(with.results[n].loss == without.of_step[3 * n]);
  }
}

TEST_CASE("An evaluation of many batches is their mean, and drops nothing", "[evaluation]") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = bench.options("greedysnake", 3, 32, 2, "llama-tiny");
  options.problem.model.lora_rank = 4;
  options.steps = 1;
  std::vector<double> one_by_one;
  double sum = 0;
  for (std::int64_t first = 0; first < 23; ++first) {
    const auto batches = std::make_shared<NextSteps>(options.data[0], options.seed);
    batches->first_step = first;
    TrainingOptions one = options;
    one.evaluations = {batches, 1, 0};
    Training training(one);
    std::vector<double> losses;
    training.on_evaluation([&](const EvaluationResult& result) {
      losses.push_back(result.loss);
      return true;
    });
    training.run([](const StepResult&) {}, nullptr);
    REQUIRE(losses.size() == 2);  // before the first step, and after the last
    one_by_one.push_back(losses[0]);
    sum += losses[0];
  }
  const Evaluated all = train(options, options.data[0], 0, 23);
  CHECK(all.results.front().loss == Approx(sum / 23).epsilon(1e-12));
  CHECK(all.results.front().tokens == 23 * options.problem.workload.tokens_per_step());
  options.problem.model.lora_dropout = 0.5;
  const Evaluated dropped = train(options, options.data[0], 0, 23);
  CHECK(dropped.results.front().loss == all.results.front().loss);
  CHECK(dropped.results.back().loss != all.results.back().loss);  // what was trained differs
}

TEST_CASE("A stop between a step and its evaluation ends the training after a step more",
          "[evaluation][store]") {
  const Workbench bench(folder_for_many_runs());
  for (const bool durable : {true, false}) {
    TrainingOptions options = bench.options("greedysnake", 2, 32, 2);
    options.steps = 9;
    options.overwrite = true;
    if (durable) options.durability = {DurabilityMode::on, 5};
    options.evaluations = {std::make_shared<NextSteps>(options.data[0], options.seed), 12, 3};
    Training training(options);
    std::vector<std::int64_t> evaluated;
    training.on_evaluation([&](const EvaluationResult& result) {
      evaluated.push_back(result.step);
      return true;
    });
    const TrainingResult result = training.run(
        [&](const StepResult& step) {
          if (step.step == 2) training.request_stop();
        },
        nullptr);
    // Lanes run ahead of the report: they may have begun a step after it.
    CHECK(result.steps == 4);
    CHECK(evaluated == std::vector<std::int64_t>{0, 3});
  }
}

TEST_CASE("The evaluation after the last step is made, whatever comes", "[evaluation][store]") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = bench.options("resident", 2, 32, 2);
  options.steps = 4;
  const auto batches = std::make_shared<NextSteps>(options.data[0], options.seed);
  options.evaluations = {batches, 30, 0};
  Training training(options);
  std::vector<std::int64_t> evaluated;
  training.on_evaluation([&](const EvaluationResult& result) {
    evaluated.push_back(result.step);
    return true;
  });
  bool trained = false;
  batches->asked = [&] {
    if (trained) training.request_stop();
  };
  const TrainingResult result =
      training.run([&](const StepResult& step) { trained = step.step == 3; }, nullptr);
  CHECK(result.steps == 4);
  CHECK(evaluated == std::vector<std::int64_t>{0, 4});
}

TEST_CASE("A training of more steps than anybody waits for is prepared at once", "[evaluation]") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = bench.options("resident", 1, 32, 1);
  options.steps = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t every : {std::int64_t{0}, std::int64_t{7}, options.steps}) {
    options.evaluations = {std::make_shared<NextSteps>(options.data[0], options.seed), 1, every};
    CHECK(Training(options).schedule().steps() > 0);
  }
}

TEST_CASE("A stop in an evaluation ends the training at its step and a resumed one does it again",
          "[evaluation][store]") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = bench.options("zero-infinity", 2, 32, 2);
  options.steps = 9;
  options.durability = {DurabilityMode::on, 2};
  options.keep_store = true;
  const Evaluated whole = train(options, options.data[0], 3, 4);
  REQUIRE(whole.results.size() == 4);

  const auto batches = std::make_shared<NextSteps>(options.data[0], options.seed);
  options.evaluations = {batches, 40, 3};
  options.overwrite = true;
  std::size_t evaluations = 0;
  StoreLocation location;
  {
    Training training(options);
    training.on_evaluation([&](const EvaluationResult&) {
      ++evaluations;
      return true;
    });
    batches->asked = [&] {
      if (evaluations == 1) training.request_stop();
    };
    std::int64_t committed = 0;
    const TrainingResult result = training.run([](const StepResult&) {}, nullptr,
                                               [&](std::int64_t step) { committed = step; });
    CHECK(result.steps == 3);
    CHECK(committed == 3);
    CHECK(evaluations == 1);
    location = training.store_location();
  }
  options.resume = find_resume_point(location);
  const Evaluated rest = train(options, options.data[0], 3, 4);
  REQUIRE(rest.results.size() == 3);
  for (std::size_t n = 0; n < 3; ++n) {
    CHECK(rest.results[n].step == whole.results[n + 1].step);
    CHECK(rest.results[n].loss == whole.results[n + 1].loss);
  }
  CHECK(rest.training.weights_hash == whole.training.weights_hash);
}
