// Agreement with `transformers` on tiny models of every family: logits, all gradients, twenty AdamW
// steps. The references are made by tests/reference/make_transformers_reference.py.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "exec/cpu/adam.hpp"
#include "exec/data/checkpoint.hpp"
#include "exec/data/safetensors.hpp"
#include "policies/model/model_folder.hpp"
#include "test_paths.hpp"
#include "tests/exec/cpu/model_fixture.hpp"

using namespace spillway;

namespace {

class Reference {
 public:
  explicit Reference(const std::string& name)
      : folder_(SPILLWAY_SOURCE_DIR "/tests/reference/" + name),
        expected_(folder_ / "expected.safetensors") {
    problem.model = read_model_folder({folder_, name});
    problem.workload.batch = problem.workload.micro_batch = 2;
    problem.workload.sequence = 24;
    problem.workload.precision = Precision::fp32;
    tokens = integers("tokens");
    targets = integers("targets");
  }

  Problem problem;
  std::vector<std::int32_t> tokens, targets;  // (B, T)

  std::vector<float> expected(const std::string& name) const { return expected_.read(name); }

  // The gradient of a tensor as it lies in its unit.
  std::vector<float> gradient(const HuggingFaceTensor& tensor) const {
    std::vector<float> values = expected_.read("gradients." + tensor.name);
    const TensorLayout& layout = tensor.tensor;
    REQUIRE(values.size() == static_cast<std::size_t>(layout.elements()));
    if (!tensor.transposed) return values;
    const std::vector<float> stored = values;
    for (std::int64_t row = 0; row < layout.rows; ++row)
      for (std::int64_t column = 0; column < layout.columns; ++column)
        values[static_cast<std::size_t>(row * layout.columns + column)] =
            stored[static_cast<std::size_t>(column * layout.rows + row)];
    return values;
  }

  Units parameters() const {
    Checkpoint checkpoint(folder_, problem.model);
    Units units = empty_units(problem.model);
    for (std::size_t unit = 0; unit < units.size(); ++unit)
      checkpoint.read(static_cast<std::int64_t>(unit), 0, units[unit].size(), units[unit].data());
    return units;
  }

 private:
  std::vector<std::int32_t> integers(const std::string& name) const {
    std::vector<std::int32_t> values;
    for (const float value : expected_.read(name))
      values.push_back(static_cast<std::int32_t>(value));
    return values;
  }

  std::filesystem::path folder_;
  SafetensorsFile expected_;
};

const std::vector<std::string> names = {"llama", "qwen2", "qwen3", "mistral", "gpt2"};

// The gradient accumulators of a unit: tied, the embedding and the head unit have one each.
std::pair<const float*, const float*> accumulators(const ModelSpec& model, std::int64_t unit,
                                                   const ModelStepResult& result) {
  const float* const of_head = unit == head_unit(model) ? result.head_gradient.data() : nullptr;
  if (unit > embedding_unit(model)) return {of_head, nullptr};
  return {result.gradients[static_cast<std::size_t>(unit)].data(), of_head};
}

}  // namespace

TEST_CASE("Log-probabilities of all tokens agree with transformers to fp32 rounding") {
  // The loss of a target is minus its log-probability: one run for each token of the vocabulary.
  // Logits are up to about 5 and sums of 24 products: |ours - theirs| < 1e-5.
  for (const std::string& name : names) {
    INFO(name);
    const Reference reference(name);
    const Units parameters = reference.parameters();
    const std::vector<float> logits = reference.expected("logits");
    const auto v = static_cast<std::size_t>(reference.problem.model.vocabulary);
    REQUIRE(logits.size() == reference.tokens.size() * v);
    double worst = 0;
    for (std::size_t target = 0; target < v; ++target) {
      const std::vector<std::int32_t> targets(reference.tokens.size(),
                                              static_cast<std::int32_t>(target));
      const ModelStepResult result =
          run_step(reference.problem, parameters, reference.tokens, targets);
      for (std::size_t token = 0; token < targets.size(); ++token) {
        const float* const row = logits.data() + token * v;
        double sum = 0;
        for (std::size_t i = 0; i < v; ++i) sum += std::exp(static_cast<double>(row[i]));
        const double expected = std::log(sum) - static_cast<double>(row[target]);
        worst = std::max(worst, std::fabs(result.token_losses[token] - expected));
      }
    }
    CHECK(worst < 1e-5);
  }
}

TEST_CASE("Gradients of every tensor agree with transformers to fp32 rounding") {
  // |ours - theirs| <= 1e-5 of the tensor's largest gradient.
  for (const std::string& name : names) {
    const Reference reference(name);
    const ModelSpec& model = reference.problem.model;
    const ModelStepResult result =
        run_step(reference.problem, reference.parameters(), reference.tokens, reference.targets);
    for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
      const auto [first, second] = accumulators(model, unit, result);
      for (const HuggingFaceTensor& tensor : hugging_face_tensors(model, unit)) {
        const std::vector<float> expected = reference.gradient(tensor);
        double largest = 0, error = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const auto element = static_cast<std::size_t>(tensor.tensor.offset) + i;
          const float ours = second != nullptr ? first[element] + second[element] : first[element];
          largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
          error = std::max(error,
                           std::fabs(static_cast<double>(ours) - static_cast<double>(expected[i])));
        }
        INFO(name << ", " << tensor.name << ": largest " << largest << ", error " << error);
        CHECK(largest > 0);
        CHECK(error <= 1e-5 * largest);
      }
    }
  }
}

TEST_CASE("Twenty AdamW steps give the losses of transformers") {
  for (const std::string& name : names) {
    INFO(name);
    const Reference reference(name);
    const ModelSpec& model = reference.problem.model;
    Units parameters = reference.parameters(), copy = parameters;
    Units m = empty_units(model), v = m;
    AdamStep adam;  // as the script has them
    adam.learning_rate = 1e-3f;
    adam.beta1 = 0.9f;
    adam.beta2 = 0.95f;
    adam.epsilon = 1e-8f;
    adam.weight_decay = 0.1f;
    const std::vector<float> losses = reference.expected("step_losses");
    REQUIRE(losses.size() == 20);
    for (const float expected : losses) {
      const ModelStepResult result =
          run_step(reference.problem, copy, reference.tokens, reference.targets);
      INFO("step " << adam.t);
      CHECK(result.loss == Approx(static_cast<double>(expected)).epsilon(1e-4));
      for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
        const auto [first, second] = accumulators(model, unit, result);
        const auto index = static_cast<std::size_t>(unit);
        adamw_update_unit(parameters[index].data(), m[index].data(), v[index].data(), first, second,
                          copy[index].data(), 0, unit_elements(model, unit),
                          unit_layout(model, unit), adam);
      }
      ++adam.t;
    }
  }
}
