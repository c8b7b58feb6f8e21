// Low-rank adapters and frozen layers against the whole model: what must be equal to the last bit
// where B is zero or lower layers are frozen, and what dropout leaves of an input.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "exec/cpu/initial_values.hpp"
#include "tests/exec/cpu/model_fixture.hpp"

using namespace spillway;

namespace {

std::vector<Problem> every_model() {
  std::vector<Problem> problems = {gpt_problem(37, 3, 24, 3, 20, 4, 2)};
  for (const std::string& kind : llama_kinds)
    problems.push_back(llama_problem(kind, 37, 3, 24, 2, 20, 4, 2));
  return problems;
}

Problem with_adapters(Problem problem, double dropout = 0) {
  problem.model.lora_rank = 4;
  problem.model.lora_dropout = dropout;
  return problem;
}

Units initial_units(const ModelSpec& model) {
  Units units = empty_units(model);
  for (std::size_t unit = 0; unit < units.size(); ++unit)
    initial_values(model, static_cast<std::int64_t>(unit), 7, units[unit].data());
  return units;
}

ModelStepResult run(const Problem& problem, const Units& parameters,
                    const StepOptions& options = {}) {
  return run_step(problem, parameters, random_tokens(problem, 1), random_tokens(problem, 2),
                  options);
}

}  // namespace

TEST_CASE("A model with new adapters computes what it computes without them") {
  // B = 0: losses are equal, and so are gradients of A, which are zero; those of B are not.
  for (const Problem& problem : every_model()) {
    INFO(problem.model.name);
    const ModelStepResult base = run(problem, initial_units(problem.model));
    for (const double dropout : {0.0, 0.5}) {
      const Problem adapted = with_adapters(problem, dropout);
      const ModelStepResult result = run(adapted, initial_units(adapted.model));
      CHECK(result.token_losses == base.token_losses);
      for (const TensorLayout& tensor : unit_layout(adapted.model, 0)) {
        if (!tensor.trained) continue;
        const auto first = result.gradients[0].begin() + tensor.offset;
        const bool zero = std::all_of(first, first + tensor.elements(),
                                      [](float value) { return value == 0.0f; });
        INFO(tensor.name);
        CHECK(zero == tensor.name.ends_with("lora_A.weight"));
      }
    }
  }
}

TEST_CASE("Layers above frozen ones get the gradients of a whole training") {
  for (Problem problem : every_model()) {
    INFO(problem.model.name);
    const Units parameters = random_parameters(problem.model, 3);
    const ModelStepResult whole = run(problem, parameters);
    for (const std::int64_t frozen : {1, 2}) {
      problem.model.frozen_layers = frozen;
      const ModelStepResult part = run(problem, parameters);
      CHECK(part.token_losses == whole.token_losses);
      CHECK(part.memory_respected);
      for (std::size_t layer = 0; layer <= 3; ++layer) {
        INFO("unit " << layer);
        const bool is_frozen = layer < static_cast<std::size_t>(frozen) || layer == 3;
        if (is_frozen) {
          CHECK(part.gradients[layer].empty());
        } else {
          CHECK(same_bits(part.gradients[layer], whole.gradients[layer]));
        }
      }
      // A head of its own is trained; a tied one is frozen with the embedding.
      if (problem.model.tied) {
        CHECK(part.head_gradient.empty());
      } else {
        CHECK(same_bits(part.head_gradient, whole.head_gradient));
      }
    }
  }
}

TEST_CASE("Dropout of a step is another in the next step, and none where its share is zero") {
  for (const Problem& problem : every_model()) {
    INFO(problem.model.name);
    const Problem dropping = with_adapters(problem, 0.1);
    const Units parameters = random_parameters(dropping.model, 3);
    StepOptions first, second;
    second.step_noise = step_noise_key(1, 2);
    const ModelStepResult one = run(dropping, parameters, first);
    CHECK(same_bits(one, run(dropping, parameters, first)));
    CHECK(one.token_losses != run(dropping, parameters, second).token_losses);
    const Problem whole = with_adapters(problem);
    CHECK(same_bits(run(whole, parameters, first), run(whole, parameters, second)));
    CHECK(one.token_losses != run(whole, parameters, first).token_losses);
  }
}

TEST_CASE("Dropout zeroes its share of the values and scales the others by its inverse") {
  // 64 keys of 512 columns for each share: the number that is zero is within five standard
  // deviations of the expected one, as is that of pairs (of neighbours in columns, tokens,
  // sequences, groups, layers and steps) that are both zero.
  const std::int64_t columns = 512;
  const auto zero = [](Dropout dropout, int step, int layer, int group, int sequence, int token,
                       std::int64_t column) {
    const NoiseKey key = dropout_key(step_noise_key(9, step), layer, group, sequence);
    const float value = remaining(dropout, dropout_row(key, token), column, 3.0f);
    CHECK((value == 0.0f || value == 3.0f * dropout.factor));
    return value == 0.0f;
  };
  const auto near = [&](double count, double share) {
    const double n = 64.0 * static_cast<double>(columns);
    return std::fabs(count - n * share) < 5 * std::sqrt(n * share * (1 - share));
  };
  for (const double share : {0.05, 0.5, 0.9}) {
    INFO("share " << share);
    const Dropout dropout = dropout_of(share);
    CHECK(dropout.factor == static_cast<float>(1 / (1 - share)));
    double single = 0;
    std::array<double, 6> pairs{};
    for (int key = 0; key < 64; ++key) {
      const int step = 1 + key % 2, layer = key / 2 % 2, group = key / 4 % 2,
                sequence = key / 8 % 2, token = key / 16 % 4;
      for (std::int64_t column = 0; column < columns; ++column) {
        if (!zero(dropout, step, layer, group, sequence, token, column)) continue;
        single += 1;
        pairs[0] += zero(dropout, step, layer, group, sequence, token, column + 1);
        pairs[1] += zero(dropout, step, layer, group, sequence, token + 4, column);
        pairs[2] += zero(dropout, step, layer, group, sequence + 2, token, column);
        pairs[3] += zero(dropout, step, layer, group + 2, sequence, token, column);
        pairs[4] += zero(dropout, step, layer + 2, group, sequence, token, column);
        pairs[5] += zero(dropout, step + 2, layer, group, sequence, token, column);
      }
    }
    CHECK(near(single, share));
    for (const double pair : pairs) CHECK(near(pair, share * share));
  }
}

TEST_CASE("Dropout is what it was when it was first written") {
  // Runs that were begun before go on with the same masks; devices agree on these numbers.
  const NoiseKey key = dropout_key(step_noise_key(1, 1), 2, 3, 4);
  const NoiseKey row = dropout_row(key, 5);
  const Dropout half = dropout_of(0.5);
  std::string kept;
  for (std::int64_t column = 0; column < 32; ++column)
    kept += remaining(half, row, column, 1.0f) == 2.0f ? '1' : '0';
  CHECK(kept == "00101000000100100011001101000111");
}

TEST_CASE("Adapters begin as PEFT begins them, and the model as without them") {
  for (const Problem& problem : every_model()) {
    INFO(problem.model.name);
    const ModelSpec model = with_adapters(problem).model;
    const Units base = initial_units(problem.model), units = initial_units(model);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const auto first = units[unit].size() - base[unit].size();
      CHECK(std::equal(base[unit].begin(), base[unit].end(),
                       units[unit].begin() + static_cast<std::ptrdiff_t>(first)));
      for (const TensorLayout& tensor : unit_layout(model, static_cast<std::int64_t>(unit))) {
        if (!tensor.trained) continue;
        INFO(tensor.name);
        const float* const values = units[unit].data() + tensor.offset;
        double largest = 0, squares = 0, sum = 0;
        for (std::int64_t i = 0; i < tensor.elements(); ++i) {
          const double value = static_cast<double>(values[i]);
          largest = std::max(largest, std::fabs(value));
          squares += value * value;
          sum += value;
        }
        if (tensor.name.ends_with("lora_B.weight")) {
          CHECK(largest == 0);
          continue;
        }
        // Uniform in +-1 / sqrt(in): variance 1 / (3 in). n >= 96 values; 5 standard deviations.
        const auto n = static_cast<double>(tensor.elements()),
                   variance = 1 / (3 * static_cast<double>(tensor.columns));
        CHECK(largest <= std::sqrt(3 * variance));
        CHECK(largest > 0.9 * std::sqrt(3 * variance));
        CHECK(std::fabs(sum / n) < 5 * std::sqrt(variance / n));
        CHECK(std::fabs(squares / n - variance) < 5 * variance * std::sqrt(0.8 / n));
      }
    }
  }
}
