// Agreement with `transformers` on tiny models of every family, and with `peft` on low-rank
// adapters of some: logits, all gradients, twenty AdamW steps. The references are made by
// tests/reference/make_transformers_reference.py and make_peft_reference.py.
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

struct Name {
  std::string model;
  std::int64_t rank = 0;  // 0: no adapters
  double alpha = 0;
  std::string targets = {};  // as the script has them

  std::string folder() const { return rank > 0 ? model + "_lora" : model; }
};

const std::filesystem::path references = SPILLWAY_SOURCE_DIR "/tests/reference";

class Reference {
 public:
  explicit Reference(const Name& name)
      : folder_(references / name.folder()),
        base_folder_(references / name.model),
        expected_(folder_ / "expected.safetensors") {
    base_ = problem.model = read_model_folder({base_folder_, name.model});
    if (name.rank > 0) {
      problem.model.lora_rank = name.rank;
      problem.model.lora_alpha = name.alpha;
      problem.model.lora_targets = name.targets;
    }
    problem.workload.batch = problem.workload.micro_batch = 2;
    problem.workload.sequence = 24;
    problem.workload.precision = Precision::fp32;
    tokens = integers("tokens");
    targets = integers("targets");
  }

  Problem problem;
  std::vector<std::int32_t> tokens, targets;  // (B, T)

  std::vector<float> expected(const std::string& name) const { return expected_.read(name); }

  // What is trained of a unit.
  std::vector<HuggingFaceTensor> trained_tensors(std::int64_t unit) const {
    const ModelSpec& model = problem.model;
    if (!model.has_adapters()) return hugging_face_tensors(model, unit);
    std::vector<HuggingFaceTensor> adapters;
    for (const TensorLayout& tensor : unit_layout(model, unit)) {
      const std::string layer =
          model.architecture == Architecture::gpt ? "transformer.h." : "model.layers.";
      const std::string name =
          "base_model.model." + layer + std::to_string(unit) + "." + std::string(tensor.name);
      if (tensor.trained) adapters.push_back({name, unit, tensor, false, {}});
    }
    return adapters;
  }

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
    Checkpoint checkpoint(base_folder_, base_);
    Units units = empty_units(problem.model);
    const Units base = empty_units(base_);  // for its sizes
    for (std::size_t unit = 0; unit < units.size(); ++unit)
      checkpoint.read(static_cast<std::int64_t>(unit), 0, base[unit].size(),
                      units[unit].data() + units[unit].size() - base[unit].size());
    if (!problem.model.has_adapters()) return units;
    const SafetensorsFile adapters(folder_ / "adapter_model.safetensors");
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      for (const HuggingFaceTensor& tensor : trained_tensors(static_cast<std::int64_t>(unit))) {
        const std::vector<float> values = adapters.read(tensor.name);
        REQUIRE(values.size() == static_cast<std::size_t>(tensor.tensor.elements()));
        std::copy(values.begin(), values.end(), units[unit].begin() + tensor.tensor.offset);
      }
    }
    return units;
  }

 private:
  std::vector<std::int32_t> integers(const std::string& name) const {
    std::vector<std::int32_t> values;
    for (const float value : expected_.read(name))
      values.push_back(static_cast<std::int32_t>(value));
    return values;
  }

  std::filesystem::path folder_, base_folder_;
  ModelSpec base_;  // without adapters
  SafetensorsFile expected_;
};

const std::vector<Name> names = {{"llama"},
                                 {"qwen2"},
                                 {"qwen3"},
                                 {"mistral"},
                                 {"gpt2"},
                                 {"llama", 4, 8, "all-linear"},
                                 {"qwen2", 3, 16, "q_proj,v_proj"},
                                 {"gpt2", 4, 6, "c_attn,mlp.c_proj"}};

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
  for (const Name& name : names) {
    INFO(name.folder());
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
  for (const Name& name : names) {
    const Reference reference(name);
    const ModelSpec& model = reference.problem.model;
    const ModelStepResult result =
        run_step(reference.problem, reference.parameters(), reference.tokens, reference.targets);
    for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
      const auto [first, second] = accumulators(model, unit, result);
      for (const HuggingFaceTensor& tensor : reference.trained_tensors(unit)) {
        const std::vector<float> expected = reference.gradient(tensor);
        double largest = 0, error = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const auto element = static_cast<std::size_t>(tensor.tensor.offset) + i;
          const float ours = second != nullptr ? first[element] + second[element] : first[element];
          largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
          error = std::max(error,
                           std::fabs(static_cast<double>(ours) - static_cast<double>(expected[i])));
        }
        INFO(name.folder() << ", " << tensor.name << ": largest " << largest << ", error "
                           << error);
        CHECK(largest > 0);
        CHECK(error <= 1e-5 * largest);
      }
    }
  }
}

TEST_CASE("Twenty AdamW steps give the losses of transformers") {
  for (const Name& name : names) {
    INFO(name.folder());
    const Reference reference(name);
    const ModelSpec& model = reference.problem.model;
    Units parameters = reference.parameters(), copy = parameters;
    Units m = empty_gradients(model, 0), v = m;
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
                          copy[index].data(), 0, trained_elements(model, unit),
                          unit_layout(model, unit), adam);
      }
      ++adam.t;
    }
  }
}
