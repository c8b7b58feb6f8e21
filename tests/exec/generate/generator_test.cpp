// Generation: the logits with kept keys and values are those of whole sequences, and what is
// generated does not depend on what else is, nor on how much of the model is in memory.
#include "exec/generate/generator.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>

#include "base/errors.hpp"
#include "exec/run/model_access.hpp"
#include "policies/model/scratch.hpp"

using namespace spillway;

namespace {

std::vector<ModelSpec> models() {
  const std::vector<std::string> small = {"layers=3", "hidden=32", "heads=4"};
  const auto with = [&](const char* name, std::vector<std::string> more) {
    more.insert(more.begin(), small.begin(), small.end());
    return load_model(name, more);
  };
  ModelSpec adapted = with("llama-tiny", {"ffn=96", "kv_heads=2"});
  adapted.lora_rank = 3;
  adapted.lora_dropout = 0.5;
  return {with("gpt-tiny", {}), with("llama-tiny", {"ffn=96", "kv_heads=2"}),
          with("qwen-tiny", {"ffn=96", "head_width=10", "window=7"}), adapted};
}

// The values of a model whose adapters do something.
StateValues values_of(const ModelSpec& model) {
  return [model, initial = initial_state(model, 7)](
             std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count, float* to) {
    initial(unit, moment, first, count, to);
    if (!model.has_adapters()) return;
    for (std::uint64_t i = 0; i < count; ++i) to[i] += 0.01f * static_cast<float>((first + i) % 7);
  };
}

std::vector<std::int32_t> tokens_of(std::int64_t count, std::uint64_t seed,
                                    std::int64_t vocabulary) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocabulary)));
  return tokens;
}

// The loss of each token of a sequence that is computed as a whole, as training does.
std::vector<double> losses_of(const ModelSpec& model, UnitWeights& weights,
                              const std::vector<std::int32_t>& tokens) {
  Problem problem;
  problem.model = model;
  problem.model.lora_dropout = 0;
  problem.machine.gpu.is_cpu = true;
  problem.workload = {1, 1, static_cast<std::int64_t>(tokens.size()) - 1, Precision::fp32};
  const auto cpu = make_model_cpu(problem);
  const auto rows = static_cast<std::size_t>(problem.workload.sequence);
  std::vector<float> hidden(rows * static_cast<std::size_t>(model.hidden)), output(hidden);
  std::vector<std::byte> scratch(
      std::max(forward_scratch_bytes(problem, saved_none), head_scratch_bytes(problem)));
  cpu->embed_forward(weights.embedding(), tokens.data(), hidden.data());
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    cpu->layer_forward(weights.layer(layer), hidden.data(), output.data(), nullptr, saved_none,
                       scratch.data(), {{}, 0, 0, false});
    hidden.swap(output);
  }
  double loss = 0;
  std::vector<double> losses(rows);
  cpu->head(weights.head(), tokens.data() + 1, hidden.data(), nullptr, false, &loss, scratch.data(),
            losses.data(), 0, true);
  return losses;
}

double loss_of(std::span<const float> logits, std::int32_t target) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - most));
  return std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(target)] - most);
}

}  // namespace

TEST_CASE(
    "Tokens that are added one by one, or some at a time, have the losses of a whole sequence",
    "[generate]") {
  for (const ModelSpec& model : models()) {
    INFO(model.name << (model.has_adapters() ? " with adapters" : ""));
    UnitWeights weights(model, values_of(model), UnitWeights::all_bytes(model));
    const auto tokens = tokens_of(150, 3, model.vocabulary);
    const std::vector<double> whole = losses_of(model, weights, tokens);
    Decoder decoder(model, weights, 2, 150);
    decoder.append(1, tokens_of(20, 4, model.vocabulary));  // of no consequence for the other
    std::size_t at = 0;
    double most = 0;
    for (const std::size_t count : {1u, 5u, 1u, 130u, 1u, 1u, 10u}) {
      const auto logits = decoder.append(0, std::span(tokens).subspan(at, count));
      at += count;
      REQUIRE(static_cast<std::int64_t>(logits.size()) == model.vocabulary);
      most = std::max(most, std::abs(loss_of(logits, tokens[at]) - whole[at - 1]));
    }
    CHECK(most < 1e-5);
    CHECK(decoder.length(0) == 149);
    // Forgotten and said again.
    decoder.cut(0, 100);
    const auto again = decoder.append(0, std::span(tokens).subspan(100, 30));
    CHECK(loss_of(again, tokens[130]) == Approx(whole[129]).epsilon(1e-5));
  }
}

TEST_CASE(
    "An answer is the same alone and beside others, and however little of the model stays in "
    "memory",
    "[generate]") {
  for (const ModelSpec& model : models()) {
    INFO(model.name);
    const std::vector<std::vector<std::int32_t>> prompts = {tokens_of(3, 1, model.vocabulary),
                                                            tokens_of(9, 2, model.vocabulary),
                                                            tokens_of(140, 3, model.vocabulary)};
    GenerateOptions options;
    options.tokens = 20;
    options.sampling.temperature = 0;
    UnitWeights all(model, values_of(model), UnitWeights::all_bytes(model));
    CHECK(all.layers_in_memory() == model.layers);
    Decoder together(model, all, 3, 200);
    const auto answers = generate(together, prompts, options);
    UnitWeights few(model, values_of(model), UnitWeights::least_bytes(model));
    CHECK(few.layers_in_memory() == 0);
    for (std::size_t k = 0; k < prompts.size(); ++k) {
      Decoder alone(model, few, 1, 200);
      CHECK(generate(alone, {prompts[k]}, options).front() == answers[k]);
      CHECK(answers[k].size() == 20);
    }
    CHECK_THROWS_AS(UnitWeights(model, values_of(model), UnitWeights::least_bytes(model) - 1),
                    FitError);
    CHECK_THROWS_AS(Decoder(model, all, 1, model.positions + 1), InputError);
  }
}

TEST_CASE("Answers end at a stop, at their number of tokens and where positions end",
          "[generate]") {
  const ModelSpec model = models()[0];
  UnitWeights weights(model, values_of(model), UnitWeights::all_bytes(model));
  GenerateOptions options;
  options.tokens = 12;
  const std::vector<std::vector<std::int32_t>> prompt = {{1, 2, 3}};
  Decoder first(model, weights, 1, 64);
  const auto free = generate(first, prompt, options).front();
  REQUIRE(free.size() == 12);
  options.stops = {free[5]};
  Decoder second(model, weights, 1, 64);
  const auto stopped = generate(second, prompt, options).front();
  const auto stop = std::find(free.begin(), free.end(), free[5]);
  CHECK(stopped == std::vector<std::int32_t>(free.begin(), stop));
  options.stops.clear();
  Decoder third(model, weights, 1, 8);
  CHECK(generate(third, prompt, options).front() ==
        std::vector<std::int32_t>(free.begin(), free.begin() + 6));
  std::size_t taken = 0;
  options.take = [&](std::int64_t, std::int32_t) { return ++taken < 4; };
  Decoder fourth(model, weights, 1, 64);
  CHECK(generate(fourth, prompt, options).front().size() == 4);
}

TEST_CASE("Tokens are picked as often as their probabilities say", "[generate]") {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.05f), std::log(0.3f),
                                     std::log(0.15f)};
  const auto shares = [&](Sampling sampling) {
    Sampler sampler(sampling);
    std::map<std::int32_t, double> found;
    for (int position = 0; position < 20'000; ++position)
      found[sampler.pick(logits, position)] += 1 / 20'000.0;
    return found;
  };
  auto all = shares({.temperature = 1, .top_k = 0, .top_p = 1, .seed = 5});
  CHECK(all[0] == Approx(0.5).margin(0.015));
  CHECK(all[1] == Approx(0.05).margin(0.007));
  CHECK(all[2] == Approx(0.3).margin(0.015));
  auto nucleus = shares({.temperature = 1, .top_k = 0, .top_p = 0.75, .seed = 5});
  CHECK(nucleus.size() == 2);
  CHECK(nucleus[0] == Approx(0.5 / 0.8).margin(0.015));
  auto two = shares({.temperature = 0.5, .top_k = 2, .top_p = 1, .seed = 6});
  CHECK(two.size() == 2);
  CHECK(two[0] == Approx(0.25 / 0.34).margin(0.015));
  CHECK(shares({.temperature = 0, .top_k = 0, .top_p = 1, .seed = 5}).size() == 1);
  CHECK_THROWS_AS((Sampling{.temperature = -1}.check()), InputError);
  CHECK_THROWS_AS((Sampling{.top_p = 0}.check()), InputError);
}
